"""Every head of the benchmark: tokens in, a ranking out. Says what it saw."""
