"""All errors of Evertick, in one tree.

    EvertickError
    ├── InvalidInput (also ValueError)   an argument is wrong; nothing was changed
    │   ├── InvalidWhen                  an invalid expression, zone, calendar or bound
    │   ├── InvalidDuration              a text that is not a duration
    │   ├── InvalidArguments             arguments that do not fit the task's signature
    │   ├── InvalidKey                   a key, name or label that is not allowed
    │   ├── AlreadyDeclared              the same key or task name declared twice in one process
    │   └── InvalidSetting               an invalid setting or option
    │       ├── InvalidSpec              an invalid specification of a job or a broker: all its problems
    │       └── InvalidConfiguration     an invalid file, variable or flag: all problems, each with its place
    ├── NotFound (also LookupError)      no such schedule, run, task or calendar
    ├── Refused                          not allowed in the current state (the message says why)
    │   ├── WouldBlock                   a `.sync` call on the thread of the event loop
    │   ├── Forked                       the store was opened before a fork
    │   └── CursorGone                   the feed cannot continue from this cursor; it starts at `oldest` now
    ├── StoreError
    │   ├── StoreUnavailable             unreachable, locked, read-only or full; the outcome of a write may be unknown
    │   │   └── StoreReplaced            its files were deleted or replaced while it was open: restart
    │   └── StoreRefused                 this node must not use the store (newer schema, damaged migrations, no store)
    ├── BrokerUnavailable                a broker (Redis, NATS) is unreachable; messages are retried
    ├── ProcessDied                      the child process of a task ended before its job
    ├── JobFailed                        a job without a function failed: exit code, HTTP status
    ├── TransactionTimeout (also TimeoutError)
    │                                    `ctx.transaction()` was open for too long and was rolled back
    └── Stopped                          this run was asked to stop (raised by `ctx.check()`)
        └── Lost                         the claim was lost: nothing was finished

    Retry, Skip                          raised by a job to choose its outcome; not below EvertickError

A message says what happened, to what, and how to fix it. The command line and the configuration phrase it by the fields
`setting`, `value` and `fix`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
    """The base of all errors that Evertick raises on purpose.

    setting: the argument, option or key to correct. value: its value, shortened; never a secret. fix: how to correct
    it, in Python terms. `str(error)` is "problem; fix".
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
        """The message without the fix, if the fix is a field."""
        return super().__str__()

    def __str__(self) -> str:
        return self.problem if self.fix is None else f"{self.problem}; {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Does not call the class: some constructors take other arguments than they keep in `args`.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[EvertickError], args: tuple[object, ...]) -> EvertickError:
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidInput(EvertickError, ValueError):
    """An argument is wrong. Nothing was changed."""


class InvalidWhen(InvalidInput):
    """An invalid expression, zone, calendar or bound."""


class InvalidDuration(InvalidInput):
    """A text that is not a duration."""


class InvalidArguments(InvalidInput):
    """Arguments that do not fit the signature of the task."""


class InvalidKey(InvalidInput):
    """A key, name or label that is not allowed."""


class AlreadyDeclared(InvalidInput):
    """The same schedule key or task name declared twice in one process."""


class InvalidSetting(InvalidInput):
    """An invalid setting of the scheduler, or option of a schedule or task."""


class SpecProblem(NamedTuple):
    """One problem of a specification.

    text: the whole line. path: the keys and indexes that lead to the wrong value. problem: the sentence about it,
    without path and fix. fields: the fields that the check reads.
    """

    text: str
    path: tuple[str | int, ...]
    problem: str
    fix: str | None = None
    fields: tuple[str, ...] = ()
    # Whether the last name of the path is a field that does not exist.
    is_unknown: bool = False


class InvalidSpec(InvalidSetting):
    """An invalid specification of a job, or invalid settings of a broker, with all its problems."""

    def __init__(self, problems: tuple[SpecProblem, ...]) -> None:
        super().__init__("\n".join(each.text for each in problems))
        self.problems = problems


class InvalidConfiguration(InvalidSetting):
    """Problems in a configuration file, the environment or the flags. `problems`: one line each. `warnings`: likely
    mistakes."""

    def __init__(self, problems: tuple[str, ...], warnings: tuple[str, ...] = ()) -> None:
        more = len(problems) - 1
        rest = f"; and {more} more: `evertick config check` lists all" if more else ""
        super().__init__(f"{problems[0]}{rest}")
        self.problems, self.warnings = problems, warnings


class NotFound(EvertickError, LookupError):
    """No such schedule, run, task or calendar."""


class Refused(EvertickError):
    """Not allowed in the current state."""


class WouldBlock(Refused):
    """A `.sync` call on the thread of an event loop, which it would block."""


class Forked(Refused):
    """The store was opened before this process was forked."""

    @classmethod
    def opened(cls, description: str, opener: int) -> Forked:
        """`opener`: the process that opened the store."""
        return cls(
            f"the {description} was opened by process {opener}, and this process is a fork of it; connections and "
            "threads do not survive a fork",
            fix="open the store in each worker, after the fork: under a web server that preloads the application, in "
            "the hook that starts a worker",
        )


class CursorGone(Refused):
    """Events after this cursor are no longer in the feed. Continue from `oldest`, where the feed starts now."""

    def __init__(self, message: str, *, oldest: str, **fields: str | None) -> None:
        super().__init__(message, **fields)
        self.oldest = oldest


class StoreError(EvertickError):
    """An error of the store."""


class StoreUnavailable(StoreError):
    """The store cannot be used now. A write in progress may or may not have happened."""


class StoreReplaced(StoreUnavailable):
    """Files of the store were deleted or replaced while it was open. The process has to be restarted."""


class StoreRefused(StoreError):
    """This node must not use this store."""


class BrokerUnavailable(EvertickError):
    """A broker cannot be used now. Messages in transit may or may not have arrived."""


class ProcessDied(EvertickError):
    """The child process of a task ended before its job: a crash, an exit, a kill from outside."""


class JobFailed(EvertickError):
    """A job without a function ended and reported failure. Retried by the task's policy.

    result: the result of the run in spite of the failure, such as an exit code.
    """

    def __init__(self, message: str, *, result: object = None, **fields: str | None) -> None:
        super().__init__(message, **fields)
        self.result = result


class Stopped(EvertickError):
    """This run was asked to stop: cancelled, timed out, shut down, or its claim was lost."""


class Lost(Stopped):
    """The claim of this job was lost. Nothing was finished; roll back."""


class TransactionTimeout(EvertickError, TimeoutError):
    """A transaction of a job held the store's write lock for too long. It was rolled back, and nothing was finished."""


class Retry(Exception):
    """Raise in a job: the attempt failed and is retried after the given time, or else by the policy."""

    def __init__(self, message: str = "", *, after: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        self.after = after


class Skip(Exception):
    """Raise in a job: the run has nothing to do. It ends as skipped, with the reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
