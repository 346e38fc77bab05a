"""Stores of the ledger. `base` has the protocol; the scheme of a URL selects the store."""
