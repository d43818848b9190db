"""The paper, in its order: tokens of a database → one head. Sees: the database, or the database and target photos."""
