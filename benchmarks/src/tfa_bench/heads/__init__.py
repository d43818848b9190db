"""Every head of the benchmark: tokens in, a ranking out. Each says what it saw."""
