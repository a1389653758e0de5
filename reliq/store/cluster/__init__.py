"""The store over a Redis Cluster: queues at several nodes."""
