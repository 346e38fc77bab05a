"""Many nodes, one store, virtual time: the engine under kill, frost, lost answers and wrong clocks, by seed.

    loop       an event loop in virtual time; machines that live, freeze and die in it
    clock      the true clock and the wrong ones
    faults     the way to the store, which loses calls and answers
    jobs       what the nodes run; each tells a witness of its start and end
    duties     what one of them does at a time; each tells a witness of its acts
    people     who change schedules meanwhile
    story      the script of a seed
    world      where a story takes place
    journal    what happened
    replay     the ledger rebuilt from it
    calm       who was left alone when
    evidence   all of it, for the oracle
    check_*    the promises, one file per noun
    oracle     all checks together
    mutants    planted bugs that prove that the oracle sees
    run        one simulation from seed to verdict

`python -m simulation SEED` replays a seed.
"""

from simulation.run import Simulated, simulate

__all__ = ["Simulated", "simulate"]
