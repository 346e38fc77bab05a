"""Other schedulers on SQLite, doing the same count inside the job: programs that run in an environment of their own."""
