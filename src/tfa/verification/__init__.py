"""Patches of two photos → evidence that they show one place, and a ranking by it. Sees: the database."""
