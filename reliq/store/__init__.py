"""The contract between an engine and all that stands above it."""
