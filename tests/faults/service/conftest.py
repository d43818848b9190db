"""The map and the services of tests/service, for attacks on them."""

from tests.service.conftest import built, client, serve, town

__all__ = ["built", "client", "serve", "town"]
