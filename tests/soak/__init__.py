"""Constant load for hours, to see what grows, drifts or slows down: `python -m tests.soak`."""
