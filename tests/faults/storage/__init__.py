"""Faults of storage: kills, power cuts, full disks, stale holders, damaged headers. Nothing acknowledged is lost."""
