"""The map in a store (to come)."""


class EngineMap:
    """To come."""
