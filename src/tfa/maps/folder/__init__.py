"""A map as a folder of files: its header, its reader, its writer."""
