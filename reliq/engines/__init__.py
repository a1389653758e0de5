"""Engines: each keeps the contract of :mod:`reliq.store` on one kind of server."""
