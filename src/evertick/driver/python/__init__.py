"""Python functions as tasks: coroutines, threads and child processes."""
