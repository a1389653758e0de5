"""``reliq bench``: how fast one's own broker is."""
