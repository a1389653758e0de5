"""Servers of different tests have different ports."""

from __future__ import annotations

from tests.support.servers import free_port


def test_a_port_is_not_given_twice():
    """A process remembers a broker by its URL, so a later server has another one."""
    assert 300 == len({free_port() for _ in range(300)})
