"""Real servers for the tests, started by the tests themselves."""
