"""The training-free systems of others, written from their papers."""
