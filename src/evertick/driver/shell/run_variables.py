"""What a run tells the program that carries it out, as variables of its environment."""

from __future__ import annotations

from evertick.job.context import Context, record_of
from evertick.when.moment import moment_text

__all__ = ["RUN_VARIABLES", "run_variables"]


# All of them.
RUN_VARIABLES = (
    "EVERTICK_APP",
    "EVERTICK_TASK",
    "EVERTICK_RUN_ID",
    "EVERTICK_IDEMPOTENCY_KEY",
    "EVERTICK_FIRE_AT",
    "EVERTICK_ATTEMPT",
    "EVERTICK_FENCE",
    "EVERTICK_ARGS",
    "EVERTICK_SCHEDULE",
)


def run_variables(context: Context, app: str) -> dict[str, str]:
    """The variables of one attempt. A run that belongs to no schedule has no EVERTICK_SCHEDULE."""
    variables = {
        "EVERTICK_APP": app,
        "EVERTICK_TASK": context.task,
        "EVERTICK_RUN_ID": context.run_id,
        "EVERTICK_IDEMPOTENCY_KEY": context.run_id,
        "EVERTICK_FIRE_AT": moment_text(record_of(context).run.fire_at),
        "EVERTICK_ATTEMPT": str(context.attempt),
        "EVERTICK_FENCE": str(context.fence),
        "EVERTICK_ARGS": record_of(context).run.args.decode(),
    }
    if context.schedule_key is not None:
        variables["EVERTICK_SCHEDULE"] = context.schedule_key
    return variables
