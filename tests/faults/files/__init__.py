"""Hostile files: each is accepted or refused with one error that names it. Nothing hangs, nothing fills the memory."""
