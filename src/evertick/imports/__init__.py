"""Jobs of other schedulers as jobs of Evertick: read from a crontab or APScheduler's table, written as TOML or Python.

Nothing is dropped silently: each part of a line or row that Evertick cannot represent becomes a note.
"""
