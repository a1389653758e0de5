"""The contract between an engine and the layers above it."""
