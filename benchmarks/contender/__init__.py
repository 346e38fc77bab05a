"""The contenders: Evertick, the raw loop (the same SQL without a scheduler) and peers. Each is a program with verbs."""
