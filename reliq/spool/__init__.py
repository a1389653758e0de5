"""The spool: a publisher's journal for the time in which no broker answers."""
