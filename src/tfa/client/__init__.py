"""A served map, asked over HTTP with the standard library alone."""

from tfa.client.client import Client

__all__ = ["Client"]
