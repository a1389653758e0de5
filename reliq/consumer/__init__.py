"""One process as a consumer: what it holds, and what it does in the background."""
