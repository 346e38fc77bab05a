"""Planning: what is owed, and where the cursor goes. Pure."""
