"""Engines: each implements the contract of :mod:`reliq.store`."""
