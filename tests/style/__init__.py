"""Style checks of names and prose."""
