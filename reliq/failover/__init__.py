"""Several brokers: the choice of a broker, and the pauses before retries."""
