"""The embedded broker: a Valkey or Redis in a folder, started by its first user."""
