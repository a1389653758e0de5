"""The publish side of a transport: from a message to the reply of its broker."""
