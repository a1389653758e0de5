"""Redis Cluster: the map of slots to nodes, and a wire to each node."""
