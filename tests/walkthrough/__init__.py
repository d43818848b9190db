"""A new user follows the README, the tutorial and the how-to guides, in order, on the rendered town."""
