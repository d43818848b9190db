"""A new user's first hour: every command of the README and the tutorial, in order, on the rendered town."""
