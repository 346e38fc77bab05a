"""Configuration: one file (and what it includes), the environment and flags, checked and with the place of each value.

To make a node from it, call `load_configuration` and `scheduler_from`.
"""
