"""Jobs of other schedulers, as jobs of Evertick.

    found.py          what was found: jobs, and notes about what could not be carried over
    names.py          names for jobs that had none
    toml.py           jobs as a configuration file
    crontab.py        reads a crontab
    local_zone.py     the zone of this machine, which a crontab means without saying so
    job_table.py      reads the table in which APScheduler 3 keeps its jobs
    apscheduler.py    makes jobs of what it keeps there
    pickled.py        pickles as data: nothing in them is called
    python.py         jobs as a Python program

Nothing is left out silently: what a line or a row says, and a job here does not, is a note.
"""
