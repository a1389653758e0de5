"""Messages on their way to another queue or broker, each stored there once."""
