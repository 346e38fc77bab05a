"""The ledger in the hands of a test: what fired, what ran, what did not, and assertions that show it when they fail."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from evertick.errors import NotFound
from evertick.model import Cause, Gap, Run, State, Verdict
from evertick.scheduler.scheduler import Scheduler
from evertick.store.base import RunFilter, ScheduleFilter, Store
from evertick.text.error_line import error_summary
from evertick.when.moment import from_us, moment_of, to_us
from evertick.when.zone import zone_named

__all__ = ["Ledger", "Moment", "moment_us"]

T = TypeVar("T")
Moment = datetime | str

_ROWS_SHOWN = 30
# Virtual time has one node, so that a fire for every node is one run, too.
_FIRES = (Cause.FIRE, Cause.EVERY_NODE)
_ALL = 10**9


def moment_us(moment: Moment, *, what: str) -> int:
    return moment_of(moment, what=what) if isinstance(moment, str) else to_us(moment)


class ReadStore(Protocol):
    """Asks the store something, and waits for the answer."""

    def __call__(self, ask: Callable[[Store], Coroutine[Any, Any, T]], /) -> T: ...


class Ledger:
    """Reads and asserts. Everything is in order of time, oldest first, from the start of the kit on.

    A failed assertion is shown by pytest where the test made it (`__tracebackhide__`), not in here.
    """

    def __init__(self, scheduler: Scheduler, read: ReadStore) -> None:
        self.scheduler = scheduler
        self._read = read
        self._zone = zone_named(scheduler.settings.tz)

    # --- reading

    def runs(self, key: str | None = None, *, task: str | None = None) -> list[Run]:
        """The runs of a schedule, of a task, or all."""
        self._check(key)
        wanted = RunFilter(schedule_key=key, task=task, limit=_ALL)
        return self._read(lambda store: store.runs(self.scheduler.app, wanted))[::-1]

    def gaps(self, key: str | None = None) -> list[Gap]:
        """The stretches of moments that got no run."""
        self._check(key)
        wanted = RunFilter(schedule_key=key, limit=_ALL)
        return self._read(lambda store: store.gaps(self.scheduler.app, wanted))[::-1]

    def fired(self, key: str) -> list[datetime]:
        """The nominal moments of a schedule that became runs, however these ended."""
        return [run.fire_at for run in self.runs(key) if run.cause in _FIRES]

    def ledger(self, key: str | None = None) -> str:
        """The ledger as text, as the assertions show it."""
        rows = [(run.fire_at, self._run_text(run)) for run in self.runs(key)]
        rows += [(gap.last_at, self._gap_text(gap)) for gap in self.gaps(key)]
        rows.sort(key=lambda row: row[0])
        lines = [f"  {text}" for _, text in rows[-_ROWS_SHOWN:]] or ["  (nothing)"]
        if len(rows) > _ROWS_SHOWN:
            lines.insert(0, f"  … {len(rows) - _ROWS_SHOWN} earlier rows")
        return "\n".join([*lines, *self._outlook(key)])

    # --- asserting

    def assert_fired(self, key: str, *, times: int | None = None, at: Moment | Sequence[Moment] | None = None) -> None:
        """It fired: at least once, exactly so many times, or at exactly these moments."""
        __tracebackhide__ = True
        fired = self.fired(key)
        if at is not None:
            self._assert_fired_at(key, fired, [at] if isinstance(at, str | datetime) else list(at))
        if times is None and at is None and not fired:
            raise self._failure(f"{key!r} did not fire", key)
        if times is not None and len(fired) != times:
            raise self._failure(f"{key!r} fired {_times(len(fired))}, not {_times(times)}", key)

    def assert_not_fired(self, key: str) -> None:
        """It did not fire at all."""
        __tracebackhide__ = True
        fired = self.fired(key)
        if fired:
            raise self._failure(f"{key!r} fired {_times(len(fired))}, and should not have", key)

    def assert_succeeded(self, key: str, *, times: int | None = None) -> None:
        """All of its runs have succeeded, and there are some: any number, or exactly so many."""
        __tracebackhide__ = True
        runs = self.runs(key)
        others = [run for run in runs if run.verdict is not Verdict.SUCCEEDED]
        if others:
            raise self._failure(f"{key!r} has {_count(len(others), 'run')} that did not succeed", key)
        if not runs:
            raise self._failure(f"{key!r} has not run", key)
        if times is not None and len(runs) != times:
            raise self._failure(f"{key!r} succeeded {_times(len(runs))}, not {_times(times)}", key)

    def assert_failed(self, key: str, *, reason: str | None = None, times: int | None = None) -> None:
        """Runs of it have failed for good: some, or exactly so many; for this reason (`error`, `timeout`), if given."""
        __tracebackhide__ = True
        self._assert_ended(key, Verdict.FAILED, reason, times)

    def assert_skipped(self, key: str, *, reason: str | None = None, times: int | None = None) -> None:
        """Moments of it were skipped: some, or exactly so many; for this reason (`overlap`, `paused`, …), if given."""
        __tracebackhide__ = True
        self._assert_ended(key, Verdict.SKIPPED, reason, times)

    def assert_missed(self, key: str, *, reason: str | None = None, times: int | None = None) -> None:
        """Moments of it were missed: some, or exactly so many; for this reason (`downtime`, `grace`, …), if given."""
        __tracebackhide__ = True
        self._assert_ended(key, Verdict.MISSED, reason, times)

    def _assert_fired_at(self, key: str, fired: list[datetime], moments: Iterable[Moment]) -> None:
        __tracebackhide__ = True
        wanted = sorted(moment_us(each, what="at") for each in moments)
        found = [to_us(each) for each in fired]
        if found == wanted:
            return
        missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        what = [f"not at {self._moment(from_us(us))}" for us in missing[:5]]
        what += [f"unexpectedly at {self._moment(from_us(us))}" for us in extra[:5]]
        more = len(missing[5:]) + len(extra[5:])
        what += [f"and {more} more"] if more else []
        raise self._failure(
            f"{key!r} did not fire at the given moments: {', '.join(what) or 'one is given twice'}", key
        )

    def _assert_ended(self, key: str, verdict: Verdict, reason: str | None, times: int | None) -> None:
        """Counts moments: a run is one, a gap as many as it covers."""
        __tracebackhide__ = True
        count = sum(run.verdict is verdict and reason in (None, run.reason) for run in self.runs(key))
        count += sum(gap.count for gap in self.gaps(key) if gap.verdict is verdict and reason in (None, gap.reason))
        words = verdict.value if reason is None else f"{verdict.value}({reason})"
        if times is None and not count:
            raise self._failure(f"no moment of {key!r} ended as {words}", key)
        if times is not None and count != times:
            raise self._failure(f"{_count(count, 'moment')} of {key!r} ended as {words}, not {times}", key)

    # --- words

    def _failure(self, what: str, key: str) -> AssertionError:
        return AssertionError(f"{what}\nthe ledger of {key!r}:\n{self.ledger(key)}")

    def _check(self, key: str | None) -> None:
        """A key that was never used is a mistake of the test, not an empty ledger."""
        if key is None or self._schedule_keys((key,)):
            return
        wanted = RunFilter(schedule_key=key, limit=1)
        if not self._read(lambda store: store.runs(self.scheduler.app, wanted)):
            known = ", ".join(map(repr, self._schedule_keys(None))) or "none"
            raise NotFound(f"there is no schedule {key!r}; there are: {known}")

    def _schedule_keys(self, keys: tuple[str, ...] | None) -> list[str]:
        wanted = ScheduleFilter(keys=keys, with_counts=False)
        return [found.key for found in self._read(lambda store: store.schedules(self.scheduler.app, wanted))]

    def _outlook(self, key: str | None) -> list[str]:
        now = f"  now it is {self._moment(from_us(self._read(lambda store: store.now())))}"
        lines = [now]
        if key is not None:
            wanted = ScheduleFilter(keys=(key,), with_counts=False)
            for found in self._read(lambda store: store.schedules(self.scheduler.app, wanted)):
                following = "never" if found.next_fire_at is None else self._moment(found.next_fire_at)
                lines = [f"{now}; the next fire is {following}" + (", but it is paused" if found.is_paused else "")]
        if self.scheduler.settings.concurrency == 0:
            lines.append("  this scheduler has concurrency=0: it runs nothing")
        return lines

    def _run_text(self, run: Run) -> str:
        ending = run.state.value if run.verdict is None else run.verdict.value
        text = f"{self._moment(run.fire_at)}  {ending}" + ("" if run.reason is None else f"({run.reason})")
        if run.schedule_key is None or run.cause not in _FIRES:
            text += f"  {run.task} by {run.cause.value}"
        if run.attempts > 1:
            text += f"  {run.attempts} attempts"
        if run.state is State.WAITING and run.due_at != run.fire_at:
            text += f"  due {self._moment(run.due_at)}"
        if run.error:
            text += "  " + error_summary(run.error)
        return text

    def _gap_text(self, gap: Gap) -> str:
        first, last = self._moment(gap.first_at), self._moment(gap.last_at)
        stretch = first if gap.first_at == gap.last_at else f"{first} … {last}"
        return f"{stretch}  {gap.verdict.value}({gap.reason})  {_count(gap.count, 'moment')} without a run"

    def _moment(self, moment: datetime) -> str:
        local = moment.astimezone(self._zone)
        fraction = f".{local.microsecond:06d}" if local.microsecond else ""
        return f"{local:%Y-%m-%d %H:%M:%S}{fraction} {local:%Z}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
