"""Python functions as tasks: coroutines, threads, and processes of their own."""
