"""The checks of a server and of a cluster that `reliq doctor` reports."""
