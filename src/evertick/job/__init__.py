"""The job's side of a run: its arguments, its context, its transaction."""
