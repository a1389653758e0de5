"""Several brokers: which one is used, and when it is tried again."""
