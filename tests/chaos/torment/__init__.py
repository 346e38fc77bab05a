"""A fleet of real processes on a real PostgreSQL, tormented by a seed, and judged by witnesses outside of the database.

    sh run chaos --minutes 60 --seed 7 --report docs/explanation

`catalogue` says what is scheduled, `program` is a node that carries it out, `witness` what its jobs leave behind.
`site` has the server, the processes and a `proxy` between them; `faults` plans by a seed what goes wrong, and `storm`
does it to them. `checker` holds the ledger against the rules and the witnesses; `figures`, `page` and `picture` tell it
to people.
"""
