"""Commands as tasks, each in its own process group."""
