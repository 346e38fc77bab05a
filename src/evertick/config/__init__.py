"""Configuration: one file (and what it includes), the environment and flags, checked and with the place of each value.

    find.py                             where the file is
    place.py, toml.py, include.py       files as data, and the line of every key
    interpolate.py                      ${NAME} in values
    kind.py, section.py                 what may be set, of which kind, and its default
    layer.py, origin.py                 defaults < files < environment < flags
    keys.py, database.py, broker.py     where servers are: a URL, or its parts
    brokers.py, directory.py            brokers as their drivers want them; directories
    table.py, job.py, rule.py, retry.py jobs as data
    calendar.py                         calendars as data
    problem.py, reading.py              all that is wrong, in the words of a file
    variables.py                        variables with names like Evertick's that are none of its own
    warning.py, needs.py, writing.py    likely mistakes, and what is missing on this machine
    configuration.py, load.py           all of it: `load_configuration`
    adding.py, build.py                 a scheduler from it: `scheduler_from`
    reload.py, news.py, premature.py    the same files again, while a node runs: what changed, what needs a restart
    doing.py                            what jobs do, as far as it is not in the ledger
    show.py                             what holds, for people, without secrets

To make a node from it, call `load_configuration` and `scheduler_from`.
"""
