"""The pytest plugin of Evertick."""
