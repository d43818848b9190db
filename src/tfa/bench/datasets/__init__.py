"""A folder of a public dataset → images, queries and positives."""
