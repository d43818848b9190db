"""Faults and attacks of the service: hostile photos, slow clients, broken disks and threads."""
