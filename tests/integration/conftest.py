"""The fixture that the tests of Kombu's API share."""

from .kombu_client import client, connect

__all__ = ["client", "connect"]
