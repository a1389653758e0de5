"""The embedded engine: a broker that is one SQLite file. The only place that imports sqlite3."""
