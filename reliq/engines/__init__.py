"""Engines: each keeps the contract of :mod:`reliq.store`."""
