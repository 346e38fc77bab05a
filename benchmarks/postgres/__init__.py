"""The same on PostgreSQL, and what only a fleet has: several nodes, a ledger that is years old, care by the server."""
