"""Contracts on the words of the code."""
