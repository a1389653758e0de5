"""From exchange and routing key to queues, and the sequence that stores a publish once."""
