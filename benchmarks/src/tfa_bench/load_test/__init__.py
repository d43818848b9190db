"""A service under load: clients, edits, a kill, and what is there afterwards."""
