"""Drivers carry out a task: `function` calls Python. `base` is what the engine knows of them."""
