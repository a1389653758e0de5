"""The client: connections to servers, Sentinels and clusters, and commands over them."""
