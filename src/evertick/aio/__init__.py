"""Small things about event loops."""
