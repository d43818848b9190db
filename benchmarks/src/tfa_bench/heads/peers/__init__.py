"""Training-free systems of other authors, implemented from their papers."""
