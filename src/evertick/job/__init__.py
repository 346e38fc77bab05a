"""What a running job sees: its arguments, its context, its transaction."""
