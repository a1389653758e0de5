"""Several brokers: which one is used, and the way back to the primary one."""
