"""Datasets: read folders of many layouts into database, queries and positives."""
