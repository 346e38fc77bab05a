"""Who is measured: Evertick, the same SQL work without a scheduler, and other schedulers; each a program with verbs."""
