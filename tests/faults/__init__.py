"""The fault campaign: what is killed, cut off, mutated or sent in bad faith, and whether anything is lost."""
