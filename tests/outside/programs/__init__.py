"""What tests/outside runs as processes of their own: applications, and suites' adapters."""
