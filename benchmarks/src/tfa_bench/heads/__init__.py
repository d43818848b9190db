"""Every head of the benchmark: tokens in, a ranking out. Each states the data it used."""
