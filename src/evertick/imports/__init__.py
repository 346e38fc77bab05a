"""Jobs of other schedulers, as jobs of Evertick: read from a crontab or APScheduler's table, written as TOML or Python.

Nothing is left out silently: a part of a line or row that a job here cannot have becomes a note.
"""
