"""Redis Cluster: which node has a slot, and a wire to each node."""
