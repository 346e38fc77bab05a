"""Planning: which runs and gaps a schedule owes, and its next cursor. Pure."""
