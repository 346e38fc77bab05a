"""Explanations as text. Reads, and changes nothing."""
