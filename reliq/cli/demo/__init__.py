"""``reliq demo``: workers that are killed, and what becomes of their tasks."""
