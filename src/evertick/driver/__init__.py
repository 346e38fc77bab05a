"""Drivers carry out tasks: `function` calls Python, `shell` runs a command. `base` is their interface to the engine."""
