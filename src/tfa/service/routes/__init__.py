"""The HTTP interface, one file per resource: requests → calls of the live map → JSON."""
