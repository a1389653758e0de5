"""The values that the store takes and returns, and its limits."""
