"""Measures reliq beside Kombu's own Redis transport, in the same run: `python -m benchmarks`."""
