"""Many nodes, one store, virtual time: the engine under kills, suspensions, lost answers and wrong clocks, by seed.

    loop          an event loop in virtual time, whose machines can be killed and frozen
    clock         the clock of the store, and the wrong clocks of nodes
    faults        the network between nodes and store, which loses calls and answers
    jobs          jobs of the nodes; each records its start and end
    duties        duties of the nodes; each records its acts
    dispatched    tasks that are dispatched to an outside queue
    queue         that queue and its workers
    senders       senders of outbox messages
    people        users who change schedules meanwhile
    story         the script of a seed: nodes, schedules, faults and changes
    world         runs a story
    journal       the events of a simulation
    replay        the ledger, rebuilt from the journal
    disturbances  the times at which each node or the store was disturbed
    evidence      the input of the checks
    check_*       checks of the promises, one file per subject
    oracle        all checks together
    mutants       planted bugs, which prove that the checks work
    run           one simulation, from seed to violations

`python -m simulation SEED` replays a seed.
"""

from simulation.run import SimulationResult, simulate

__all__ = ["SimulationResult", "simulate"]
