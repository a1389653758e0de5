"""The embedded broker: a Valkey or Redis server in a folder, started by its first client."""
