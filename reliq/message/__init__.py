"""Stored messages: their bytes and delivery tags, and the names and arguments of queues."""
