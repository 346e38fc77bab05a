"""How fast Evertick is on the machine at hand, beside the same SQL work without a scheduler. See README.md."""
