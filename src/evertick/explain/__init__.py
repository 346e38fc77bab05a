"""Answers in words. Reads, and changes nothing."""
