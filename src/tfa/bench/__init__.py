"""Heads and datasets → rankings, numbers, tables and figures. The only room that sees labels."""
