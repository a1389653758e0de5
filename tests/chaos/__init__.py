"""Kills everything in turn and counts what was lost or ran twice: `python -m tests.chaos`."""
