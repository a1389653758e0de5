"""A message as it is stored: its bytes, its delivery tag, what a queue asks of it."""
