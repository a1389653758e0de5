"""Routing: queues by exchange and routing key, and the numbers that store a publish once."""
