"""Programs that tests/outside runs as processes: applications, and adapters of suites."""
