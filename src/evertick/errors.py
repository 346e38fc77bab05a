"""Every error Evertick raises, in one tree.

    EvertickError
    ├── InvalidInput (also ValueError)   something the caller wrote is wrong; nothing was changed
    │   ├── InvalidWhen                  an expression, zone, calendar or bound that cannot be
    │   ├── InvalidDuration              text that is no duration
    │   ├── InvalidArguments             arguments that do not fit the task's signature
    │   ├── InvalidKey                   a key, name or label that is not allowed
    │   ├── AlreadyDeclared              the same key or task name declared twice in one process
    │   └── InvalidSetting               a setting of the scheduler or an option that cannot be
    │       ├── InvalidSpec              the specification of a job, or of a broker: all that is wrong with it
    │       └── InvalidConfiguration     a configuration file, variable or flag: all that is wrong, each with its place
    ├── NotFound (also LookupError)      no such schedule, run, task or calendar
    ├── Refused                          understood, and not allowed as things are (the message says why)
    │   ├── WouldBlock                   a `.sync` call on the event loop's own thread
    │   ├── Forked                       the store was opened before a fork
    │   └── CursorGone                   the feed cannot go on from this cursor: `oldest` is where it begins now
    ├── StoreError
    │   ├── StoreUnavailable             away, locked, read-only or full; the outcome of a write may be unknown
    │   │   └── StoreReplaced            its files were deleted or replaced while it was open: restart
    │   └── StoreRefused                 this node must not use the store (newer schema, damaged migrations, no store)
    ├── BrokerUnavailable                a broker (Redis, NATS) is away; what was to go there is tried again
    ├── ProcessDied                      the child process of a task ended before its job did
    ├── JobFailed                        a job without a function says that it failed: an exit code, a status
    ├── TransactionTimeout (also TimeoutError)
    │                                    `ctx.transaction()` was open for too long, and was rolled back
    └── Stopped                          this run was asked to stop (raised by `ctx.check()`)
        └── Lost                         the claim does not hold its run any more: nothing was finished

    Retry, Skip                          raised by a job to say how it ends; not errors, so not below EvertickError

A message says what happened, to what, and what to do about it. Each of them may carry fields,
`setting`, `value` and `fix`, by which the command line and the configuration phrase it in their own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "AlreadyDeclared",
    "BrokerUnavailable",
    "CursorGone",
    "EvertickError",
    "Forked",
    "InvalidArguments",
    "InvalidConfiguration",
    "InvalidDuration",
    "InvalidInput",
    "InvalidKey",
    "InvalidSetting",
    "InvalidSpec",
    "InvalidWhen",
    "JobFailed",
    "Lost",
    "NotFound",
    "ProcessDied",
    "Refused",
    "Retry",
    "Skip",
    "Stopped",
    "StoreError",
    "StoreRefused",
    "StoreReplaced",
    "StoreUnavailable",
    "TransactionTimeout",
    "WouldBlock",
]


class EvertickError(Exception):
    """The root of every error Evertick raises on purpose.

    setting: the argument, option or key to correct. value: what it has, shortened; never that of a secret. fix: what to
    do, in the words of Python. `str(error)` is the problem and the fix.
    """

    setting: str | None = None
    value: str | None = None
    fix: str | None = None

    def __init__(
        self, *args: object, setting: str | None = None, value: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(*args)
        if setting is not None:
            self.setting = setting
        if value is not None:
            self.value = value
        if fix is not None:
            self.fix = fix

    @property
    def problem(self) -> str:
        """What is wrong, without the fix where that is a field."""
        return super().__str__()

    def __str__(self) -> str:
        return self.problem if self.fix is None else f"{self.problem}; {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class: some take more, or other, arguments than they keep.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[EvertickError], args: tuple[object, ...]) -> EvertickError:
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidInput(EvertickError, ValueError):
    """What the caller wrote is wrong. Nothing was changed."""


class InvalidWhen(InvalidInput):
    """An expression, zone, calendar or bound that cannot be."""


class InvalidDuration(InvalidInput):
    """Text that is no duration."""


class InvalidArguments(InvalidInput):
    """Arguments that do not fit the signature of the task."""


class InvalidKey(InvalidInput):
    """A key, name or label that is not allowed."""


class AlreadyDeclared(InvalidInput):
    """The same schedule key or task name declared twice in one process."""


class InvalidSetting(InvalidInput):
    """A setting of the scheduler, or an option of a schedule or task, that cannot be."""


class InvalidSpec(InvalidSetting):
    """The specification of a job, or the settings of a broker. `problems` has it all: each sentence with the fields it
    is about."""

    def __init__(self, problems: dict[str, tuple[str, ...]]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InvalidConfiguration(InvalidSetting):
    """Something in a configuration file, the environment or the flags. `problems` has it all, a line each.

    `warnings` has likely mistakes, which are worth correcting in the same round.
    """

    def __init__(self, problems: tuple[str, ...], warnings: tuple[str, ...] = ()) -> None:
        more = len(problems) - 1
        rest = f"; and {more} more: `evertick config check` lists all" if more else ""
        super().__init__(f"{problems[0]}{rest}")
        self.problems, self.warnings = problems, warnings


class NotFound(EvertickError, LookupError):
    """No such schedule, run, task or calendar."""


class Refused(EvertickError):
    """Understood, and not allowed as things are."""


class WouldBlock(Refused):
    """A `.sync` call on the thread of the event loop that would have to answer it."""


class Forked(Refused):
    """The store was opened before this process was forked."""

    @classmethod
    def opened(cls, description: str, opener: int) -> Forked:
        """`opener`: the process that has opened the store."""
        return cls(
            f"the {description} was opened by process {opener}, and this is a fork of it; connections and threads do "
            "not survive that. Open the store in each worker, after the fork: under a web server that preloads the "
            "application, in the hook that starts a worker"
        )


class CursorGone(Refused):
    """What followed this cursor is not in the feed, or not all of it. To begin anew, go on from `oldest`."""

    def __init__(self, message: str, *, oldest: str) -> None:
        super().__init__(message)
        self.oldest = oldest


class StoreError(EvertickError):
    """Something about the store."""


class StoreUnavailable(StoreError):
    """The store cannot be used now. A write that was under way may or may not have happened."""


class StoreReplaced(StoreUnavailable):
    """Files of the store were deleted or replaced while it was open. Only a restart of the process helps."""


class StoreRefused(StoreError):
    """This node must not use this store."""


class BrokerUnavailable(EvertickError):
    """A broker cannot be used now. What was on its way may or may not have arrived."""


class ProcessDied(EvertickError):
    """The child process of a task ended before its job did: a crash, an exit, a kill from outside."""


class JobFailed(EvertickError):
    """A job without a function came to its end, and its own verdict is that it failed. Retried by the task's policy.

    result: what is kept as the result of the run all the same, like an exit code.
    """

    def __init__(
        self,
        message: str,
        *,
        result: object = None,
        setting: str | None = None,
        value: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, setting=setting, value=value, fix=fix)
        self.result = result


class Stopped(EvertickError):
    """This run was asked to stop: cancelled, out of time, shut down, or no longer ours."""


class Lost(Stopped):
    """The claim under which this job runs does not hold its run any more. Nothing was finished; roll back."""


class TransactionTimeout(EvertickError, TimeoutError):
    """A transaction of a job held the store's write lock for too long. It was rolled back, and nothing was finished."""


class Retry(Exception):
    """Raise in a job: this attempt did not work, try again (after the given time, else by the policy)."""

    def __init__(self, message: str = "", *, after: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        self.after = after


class Skip(Exception):
    """Raise in a job: there is nothing to do for this run. It ends as skipped, with the reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
