"""Applies faults to all parts and counts lost and repeated tasks: `python -m tests.chaos`."""
