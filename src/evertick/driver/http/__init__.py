"""HTTP requests as tasks."""
