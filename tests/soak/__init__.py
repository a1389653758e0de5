"""Constant load for hours, which shows growth, drift and slowdown: `python -m tests.soak`."""
