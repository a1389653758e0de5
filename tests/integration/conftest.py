"""The fixture that the tests of Kombu's API share."""

from .kombu_client import client

__all__ = ["client"]
