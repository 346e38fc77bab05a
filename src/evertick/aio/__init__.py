"""Small helpers for event loops."""
