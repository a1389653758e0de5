"""``reliq demo``: kill a worker, and show the recovery of its tasks."""
