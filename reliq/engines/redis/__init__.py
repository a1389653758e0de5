"""The Redis engine. Only this package imports redis."""
