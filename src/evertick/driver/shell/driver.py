"""The driver of shell jobs: runs each command in its own process group, under a keeper process.

The keeper ends the command and all its descendants after a timeout, a cancel or the death of the node. `execute`
returns only when all these processes have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

from evertick.clock import system_clock
from evertick.driver.secret import Secret
from evertick.driver.shell.output import CapturedOutput
from evertick.driver.shell.spec import TEXT_MAX_BYTES, Account, Shell, account_for_user, expand_home, run_variables
from evertick.driver.shell.supervised import Ending, Order, SupervisedCommand, stop_seconds
from evertick.driver.spec import DriverParts
from evertick.errors import JobFailed, Retry, Skip
from evertick.job.arguments import FreeArguments
from evertick.job.context import Context, record_of

__all__ = ["ShellDriver"]

log = logging.getLogger("evertick.process")

# Variables of the node that commands do not inherit: settings and secrets of Evertick, and those set by systemd.
_REMOVED_PREFIXES = ("EVERTICK_", "LISTEN_", "WATCHDOG_")
_REMOVED = frozenset({"NOTIFY_SOCKET", "JOURNAL_STREAM", "INVOCATION_ID", "MAINPID"})
# A clean environment keeps the locale and the time zone of the node.
_KEPT_WHEN_CLEAN = ("LANG", "LC_ALL", "TZ")
_CLEAN_PATH = "/usr/local/bin:/usr/bin:/bin"


class ShellDriver:
    """Runs one command."""

    name = "shell"
    can_be_cancelled = True

    def __init__(self, spec: Shell, task: str, parts: DriverParts) -> None:
        self._spec = spec
        self._parts = parts
        self._arguments = FreeArguments(task)
        self.kill_after = spec.kill_after_us

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Any:
        if record_of(context).clock is not system_clock:
            # Virtual time: a test of schedules must not run real commands.
            context.log(f"not run in virtual time: {' '.join(self._spec.words)}")
            return None
        secrets = self._secrets()
        output = CapturedOutput(
            record_of(context).open_buffer().write, record_of(context).clock.now_us, secrets.values()
        )
        phases = _Phases(context)
        try:
            command = self._start(context, secrets, output, phases)
        except BaseException:
            phases.fail()
            raise
        try:
            await asyncio.wait([command.ended])
        except asyncio.CancelledError:
            if not command.ended.done():
                await self._stop(command, context, output)
                phases.end(command.ended.result(), output, is_failed=True)
                # After TERM its work may be incomplete even with exit code 0.
                raise
        ending = command.ended.result()
        record_of(context).fallback_result = _result(ending)
        await self._close(output, is_cut=ending.code is None)
        good_codes = (*self._spec.success_codes, *self._spec.skip_codes)
        phases.end(ending, output, is_failed=ending.code not in good_codes)
        if ending.failure is None:
            context.log(f"{ending}{_used(ending)}")
        self._judge(ending, output)
        return record_of(context).fallback_result

    async def _stop(self, command: SupervisedCommand, context: Context, output: CapturedOutput) -> None:
        why = record_of(context).stopped or "shutdown"
        await command.stop_and_wait(stop_seconds(why, self.kill_after / 1e6))
        ending = command.ended.result()
        record_of(context).fallback_result = _result(ending)
        await self._close(output, is_cut=True)
        context.log(f"stopped ({why}) with all its processes{_used(ending)}")

    async def _close(self, output: CapturedOutput, *, is_cut: bool) -> None:
        """Write the end of the output. A cancel is ignored meanwhile, because the command has ended."""
        if not output.is_slow_to_close:
            output.close(is_cut=is_cut)
            return
        closing = asyncio.ensure_future(self._parts.threads.call(lambda: output.close(is_cut=is_cut)))
        while not closing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([closing])
        closing.result()

    def _start(
        self, context: Context, secrets: dict[str, str], output: CapturedOutput, phases: _Phases
    ) -> SupervisedCommand:
        spec = self._spec
        account = None if spec.user is None else account_for_user(spec.user)
        order = Order(
            cwd=_directory(spec, account),
            env=self._environment(context, account, secrets),
            uid=None if account is None else account.uid,
            gid=None if account is None else account.gid,
            groups=() if account is None else account.groups,
            nice=spec.nice,
            memory=spec.memory_bytes,
        )
        stdin = _value(spec.stdin, secrets)
        data = None if stdin is None else stdin.encode(errors="surrogateescape")
        try:
            command = SupervisedCommand(
                spec.words,
                output,
                order=order,
                stdin=data,
                on_stuck=lambda text: _warn(context, text),
                on_started=phases.started,
            )
        except OSError as error:  # out of processes, files or memory
            raise JobFailed(f"the command could not be started: {error.strerror or error}") from None
        return self._parts.children.watch(command)

    def _environment(self, context: Context, account: Account | None, secrets: dict[str, str]) -> dict[str, str]:
        """The variables of the command. For another user they start clean, as at a login."""
        is_clean = self._spec.clean_env or account is not None
        variables = _clean_environment() if is_clean else _inherited_environment()
        if account is not None:
            variables |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": "/bin/sh"}
        variables |= {name: _value(value, secrets) for name, value in self._spec.env.items()}
        variables |= run_variables(context, self._parts.app)
        size = len(variables["EVERTICK_ARGS"].encode())
        if size > TEXT_MAX_BYTES:
            raise JobFailed(
                f"the arguments have {size} bytes, more than the {TEXT_MAX_BYTES} of a variable",
                fix="pass a reference to the data",
            )
        return variables

    def _secrets(self) -> dict[str, str]:
        """The values of all secrets of the command, by name."""
        values = [*self._spec.env.values(), self._spec.stdin]
        names = {each.name for each in values if isinstance(each, Secret)}
        return {name: self._parts.resolve_secret(name) for name in sorted(names)}

    def _judge(self, ending: Ending, output: CapturedOutput) -> None:
        """Raise Skip, Retry or JobFailed by the exit code; return on success."""
        spec, code = self._spec, ending.code
        last = f": {output.last_line}" if output.last_line else ""
        if code is not None and code in spec.skip_codes:
            raise Skip(f"exit code {code}{last}")
        if code is not None and code in spec.retry_codes:
            raise Retry(f"{ending}, which is in retry_codes{last}")
        if code is None or code not in spec.success_codes:
            raise JobFailed(f"{ending}{last}", result=_result(ending))


class _Phases:
    """The phases of a run: `start` until the command has started, `run` until all its processes have ended."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = record_of(context).begin_phase("start")

    def started(self, pid: int) -> None:
        self._open.end()
        self._open = record_of(self._context).begin_phase("run", {"pid": pid})

    def fail(self) -> None:
        self._open.end(is_failed=True)

    def end(self, ending: Ending, output: CapturedOutput, *, is_failed: bool) -> None:
        if ending.code is not None:
            self._open.metadata["exit_code"] = ending.code
        if ending.signal is not None:
            self._open.metadata["signal"] = ending.signal
        if ending.failure is None:
            self._open.metadata |= {f"{stream}_bytes": count for stream, count in output.counts.items()}
        self._open.end(is_failed=is_failed)


def _warn(context: Context, text: str) -> None:
    """Log to the run and to the node."""
    context.log(text, level="warning")
    log.warning("run %s of %r: %s", context.run_id, context.task, text)


def _directory(spec: Shell, account: Account | None) -> str | None:
    if spec.cwd is None:
        return None if account is None else account.folder
    return expand_home(spec.cwd, os.path.expanduser("~") if account is None else account.home)


def _inherited_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_REMOVED_PREFIXES) and name not in _REMOVED
    }


def _clean_environment() -> dict[str, str]:
    return {"PATH": _CLEAN_PATH, **{name: os.environ[name] for name in _KEPT_WHEN_CLEAN if name in os.environ}}


def _value(value: Any, secrets: dict[str, str]) -> Any:
    return secrets[value.name] if isinstance(value, Secret) else value


def _result(ending: Ending) -> dict[str, Any] | None:
    """The result of a command, also of a failed one; None if it could not be started."""
    if ending.failure is not None:
        return None
    return {"exit_code": ending.code, "cpu_seconds": ending.cpu_seconds, "max_rss_bytes": ending.max_rss_bytes}


def _used(ending: Ending) -> str:
    if ending.cpu_seconds is None or ending.max_rss_bytes is None:
        return ""
    memory = ending.max_rss_bytes / 2**20
    return f"; CPU time {ending.cpu_seconds:.2f} s, peak memory {memory:.1f} MiB in one process"
