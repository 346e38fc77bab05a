"""Configuration: one file (and what it includes), the environment and flags, checked and with the place of each value.

    place.py, toml.py, include.py       files as data, and the line of every key
    interpolate.py                      ${NAME} in values
    kind.py, section.py                 what may be set, of which kind, and its default
    layer.py, origin.py                 defaults < files < environment < flags
    connection.py, directory.py         what sections come down to: URLs, directories
    table.py, job.py, rule.py, retry.py jobs as data
    problem.py, saying.py               all that is wrong, in the words of a file
    variables.py                        variables that are called like ours and are none
    warning.py, needs.py, writing.py    what is hardly meant, or not to be found here
    load.py                             all of it: `load_configuration`
    adding.py, build.py                 a scheduler from it: `scheduler_from`
    reload.py                           the same files again, while a node runs
    show.py                             what holds, for people, without secrets

Whoever makes a node from it calls `load_configuration` and `scheduler_from`.
"""
