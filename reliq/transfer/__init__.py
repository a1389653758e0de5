"""Moves of messages to another queue or broker, where each is stored once."""
