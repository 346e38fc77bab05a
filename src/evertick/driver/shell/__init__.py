"""Commands as tasks, each in a process group of its own."""
