"""Stores keep the ledger. `base` is the protocol; each store is found by the scheme of its URL."""
