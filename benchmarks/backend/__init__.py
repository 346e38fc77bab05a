"""Empty stores for trials: a SQLite file, a PostgreSQL database, a broker."""
