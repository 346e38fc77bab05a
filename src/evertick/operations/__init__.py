"""Everything that people and programs can ask of the ledger, or change in it."""
