"""All errors of a configuration are reported at once, with file, line, key, value and fix."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from echo_driver import Echo

from evertick.config.files import DEPTH_MAX, FILE_MAX_BYTES, FILES_MAX
from evertick.config.problem import PROBLEMS_MAX
from evertick.errors import InvalidConfiguration, InvalidSetting

JOB = 'every = "1h"\necho = "x"\n'


NO_REFERENCE = (
    "is no reference to the environment; write ${NAME} or ${NAME:-default}, and $${ for a ${ that is meant as it stands"
)


def cases() -> list[tuple[str, str]]:
    """The cases of refusals.txt: a file and its error line."""
    text = (Path(__file__).parent / "refusals.txt").read_text().partition("\n\n")[2]
    return re.findall(r"(?s)(.+?)\n=> ([^\n]+)\n+", text + "\n")


@pytest.mark.parametrize(("text", "line"), cases(), ids=lambda each: each.partition(": ")[2][:40])
def test_an_error_is_reported_with_its_place_its_value_and_the_fix(
    folder: Path, problems: Callable[..., list[str]], text: str, line: str
) -> None:
    assert line.replace("{folder}", str(folder)) in problems(text)


def test_any_error_of_a_third_party_driver_is_reported_with_the_line_of_its_job(
    problems: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: object, task: str) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(Echo, "check", check)
    assert problems(f"[jobs.a]\n{JOB}") == ["evertick.toml:3: jobs.a.echo: the driver cannot read it: KeyError: 'oops'"]


@pytest.mark.parametrize(("key", "value"), [("url", "postgresql://ann@h/shop"), ("address", "h")])
def test_a_store_whose_package_is_not_installed_is_reported(
    problems: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.setitem(sys.modules, "evertick.store.postgres", None)
    [line] = problems(f"[database]\n{key} = '{value}'\n")
    assert line.startswith(f"evertick.toml:2: database.{key}: the store for postgresql:// cannot be loaded (")
    assert line.endswith("); install it with `pip install 'evertick[postgres]'`")


def test_all_invalid_fields_of_a_specification_are_reported(problems: Callable[..., list[str]]) -> None:
    found = problems("[jobs.a]\nevery = '1h'\n[jobs.a.echo]\ntex = 'x'\ntimes = 'a'\n[jobs.a.echo.headers]\nA = 3\n")
    assert [each.partition(";")[0] for each in found] == [
        "evertick.toml:4: jobs.a.echo.tex: no such field 'tex'",
        "evertick.toml:5: jobs.a.echo.times: 'a' is not a whole number",
        "evertick.toml:7: jobs.a.echo.headers.A: 3 is not text",
    ]


def without_fix(found: list[str]) -> list[str]:
    """The error without the file and the fix."""
    return [each.removeprefix("evertick.toml:").partition(";")[0] for each in found]


def test_all_errors_of_a_command_are_reported_at_once(problems: Callable[..., list[str]]) -> None:
    found = problems(
        "[jobs.a]\nevery = '1h'\n[jobs.a.shell]\ncommand = ''\nkill_after = '10 seconds'\nmemory_limit = '5m'\n"
        "nice = 40\nuser = -1\ncwd = 'data'\nsuccess_codes = [0, 300]\nskip_codes = [0]\nclean_env = 'yes'\n"
        "[jobs.a.shell.env]\nA-B = 'x'\nEVERTICK_X = 'x'\nC = { secrt = 'A' }\n"
    )
    assert without_fix(found) == [
        "4: jobs.a.shell.command: '' is empty",
        "5: jobs.a.shell.kill_after: '10 seconds' is not a duration",
        "6: jobs.a.shell.memory_limit: '5m' is not a size",
        "7: jobs.a.shell.nice: 40 must be from -20 to 19",
        "8: jobs.a.shell.user: -1 is not a user id",
        "9: jobs.a.shell.cwd: 'data' is not an absolute path",
        "10: jobs.a.shell.success_codes: 300 is not an exit code",
        "11: jobs.a.shell.skip_codes: 0 is also in success_codes",
        "12: jobs.a.shell.clean_env: 'yes' is not true or false",
        "14: jobs.a.shell.env.A-B: 'A-B' is not a valid variable name",
        "15: jobs.a.shell.env.EVERTICK_X: 'EVERTICK_X': the prefix 'EVERTICK_' is reserved for Evertick",
        "16: jobs.a.shell.env.C.secrt: no such field 'secrt'",
    ]


def test_all_errors_of_a_request_are_reported_at_once(problems: Callable[..., list[str]]) -> None:
    found = problems(
        "[jobs.a]\nevery = '1h'\n[jobs.a.http]\nurl = 'ftp://host'\nmethod = 'GE T'\ntimeout = '1 week'\n"
        "redirects = 99\nread_limit = '1GB'\nallow = ['1.2.3', 'a!']\nbearer = { secret = 'a b' }\n"
        "basic = { user = 'a:b', password = { secret = 'X' } }\njson = 1\nbody = ''\n"
        "[jobs.a.http.headers]\nHost = 'x'\n'Bad Name' = 'y'\n"
        "[jobs.a.http.expect]\nstatus = '6xx'\nmatches = '('\njson = { state = 1 }\n"
    )
    assert without_fix(found) == [
        "3: jobs.a.http: bearer and basic both set credentials",
        "3: jobs.a.http: json and body both set the request body",
        "4: jobs.a.http.url: 'ftp://host' is not an http or https URL",
        "5: jobs.a.http.method: 'GE T' is not an allowed HTTP method",
        "6: jobs.a.http.timeout: '1 week' is not a duration",
        "7: jobs.a.http.redirects: 99 must be a whole number from 0 to 20",
        "8: jobs.a.http.read_limit: '1GB' is more than 16MiB",
        "9: jobs.a.http.allow: '1.2.3' is not a network, an address or a host name",
        "9: jobs.a.http.allow: 'a!' is not a network, an address or a host name",
        "10: jobs.a.http.bearer: 'a b' is not a valid name of a secret",
        "11: jobs.a.http.basic.user: 'a:b' must be printable and without ':'",
        "15: jobs.a.http.headers.Host: 'Host' cannot be set: it is taken from the url",
        "16: jobs.a.http.headers.Bad Name: 'Bad Name' is not a valid header name",
        "18: jobs.a.http.expect.status: '6xx' is not a status",
        "19: jobs.a.http.expect.matches: '(' is not a valid regular expression: missing ), unterminated subpattern at "
        "position 0",
        "20: jobs.a.http.expect.json.state: 'state' is not a JSON pointer",
    ]


def test_all_errors_of_a_queue_and_its_broker_are_reported_at_once(problems: Callable[..., list[str]]) -> None:
    found = problems(
        "[redis]\naddress = 'h'\nnamespace = 'a b'\n[nats]\naddress = 'h'\nprefix = 'A'\nreplicas = 9\n"
        "[jobs.a]\nevery = '1h'\n[jobs.a.redis]\nqueue = 'a b'\nack_timeout = '0s'\nprogress_timeout = 'x'\n"
        "kind = 'set'\nprefix = 'a b'\n[jobs.b]\nevery = '1h'\n[jobs.b.nats]\nqueue = 3\nack_timeout = '0s'\n"
    )
    assert [each.partition(": ")[2].partition(":")[0] for each in found] == [
        "redis.namespace",
        "nats.prefix",
        "nats.replicas",
        *(f"jobs.a.redis.{name}" for name in ("queue", "ack_timeout", "progress_timeout", "kind", "prefix")),
        *(f"jobs.b.nats.{name}" for name in ("queue", "ack_timeout")),
    ]


def test_errors_that_follow_from_another_error_are_not_reported(
    problems: Callable[..., list[str]],
) -> None:
    """The body is JSON because of a refused header; and 0 would be a success by default."""
    text = "[jobs.a]\nevery = '1h'\n"
    [line] = problems(f"{text}[jobs.a.http]\nurl = 'https://h'\nbody = '{{}}'\nheaders = {{ Content-Type = 3 }}\n")
    assert "jobs.a.http.headers.Content-Type: 3 is neither text nor a secret" in line
    [line] = problems(f"{text}[jobs.a.shell]\ncommand = 'x'\nsuccess_codes = ['a']\nskip_codes = [0]\n")
    assert "jobs.a.shell.success_codes.0: 'a' is not a whole number" in line
    [line] = problems(f"{text}[jobs.a.http]\nmethod = 'PUT'\n")
    assert line == "evertick.toml:3: jobs.a.http: url is missing; add it"


def test_a_check_that_stops_at_its_first_error_runs_when_all_types_are_valid(
    problems: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: Echo, task: str) -> None:
        if self.times > 9:
            raise InvalidSetting(
                f"task {task!r}: echo: times: {self.times} is too often", setting="times", fix="write less"
            )

    monkeypatch.setattr(Echo, "check", check)
    text = "[jobs.a]\nevery = '1h'\n[jobs.a.echo]\ntimes = 10\n"
    assert problems(f"{text}text = 'x'\n") == ["evertick.toml:4: jobs.a.echo.times: 10 is too often; write less"]
    assert problems(text) == ["evertick.toml:3: jobs.a.echo: text is missing; add it"]


def test_errors_from_the_scheduler_are_reported_beside_errors_of_other_jobs(
    problems: Callable[..., list[str]],
) -> None:
    found = problems(f"[node]\nmin_interval = '2h'\n[jobs.a]\n{JOB}[jobs.b]\nevery = 'x'\nredis = 'q'\n")
    assert [each.partition(": ")[2].partition(":")[0] for each in found] == ["jobs.a", "jobs.b.every"]


def test_a_misspelled_key_is_not_also_reported_as_missing(problems: Callable[..., list[str]]) -> None:
    assert without_fix(problems("[jobs.a]\nevry = '1h'\nech = 'x'\n")) == [
        "2: jobs.a.evry: no such key",
        "3: jobs.a.ech: no such key",
    ]


@pytest.mark.parametrize("rule", ["every = '5 min'", "cron = '0 25 * * *'", "once = 'soon'"])
def test_invalid_options_of_an_invalid_rule_are_reported_too(problems: Callable[..., list[str]], rule: str) -> None:
    option = "tz = 'Berln'" if rule.startswith("once") else "jitter = 'x'"
    found = problems(f"[jobs.a]\necho = 'x'\n{rule}\n{option}\n")
    assert [each.partition(": ")[2].partition(":")[0] for each in found] == [
        f"jobs.a.{rule.partition(' ')[0]}",
        f"jobs.a.{option.partition(' ')[0]}",
    ]


def test_all_errors_of_a_retry_policy_are_reported_at_once(problems: Callable[..., list[str]]) -> None:
    found = problems(f"[jobs.a]\n{JOB}[jobs.a.retry]\nexponential = 'x'\nattempts = 0\nfactor = -1\njitter = 7\n")
    assert without_fix(found) == [
        "5: jobs.a.retry.exponential: 'x' is not a duration",
        "6: jobs.a.retry.attempts: 0 is not possible",
        "7: jobs.a.retry.factor: -1 does not make delays grow",
        "8: jobs.a.retry.jitter: 7 is not a share of the delay",
    ]
    found = problems(f"[jobs.a]\n{JOB}[jobs.a.retry]\nconstant = '1s'\nattemps = 3\n")
    assert without_fix(found) == ["6: jobs.a.retry.attemps: no such key"]


def test_a_rule_outside_the_limits_of_the_node_is_reported(problems: Callable[..., list[str]]) -> None:
    [line] = problems(f"[node]\nmin_interval = '2h'\n[jobs.a]\n{JOB}")
    assert line.startswith("evertick.toml:3: jobs.a: schedule 'a': the rule 'every 1h; tz=UTC' fires 1h apart (")
    assert line.endswith("and min_interval is 2h; choose a longer interval, or lower min_interval")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n[x\n", "evertick.toml:2: this is no TOML, at column 3: "),
        (
            "[node]\npassword = secret\n",
            "evertick.toml:2: this is no TOML, at column 12: invalid value; text stands in quotes ('password = …')",
        ),
        ("[node]\na = '", "evertick.toml:2: this is no TOML, "),
        (
            "[database]\npassword = 12monkeys\n",
            "evertick.toml:2: this is no TOML, at column 14: expected newline or end of document after a statement; a "
            "line holds one key and its value; text with spaces stands in quotes ('password = …')",
        ),
        (
            "[node]\na = 'secret'\na = 2\n",
            "evertick.toml:3: this is no TOML, at column 6: cannot overwrite a value; this key is set above already; "
            "keep one of the two ('a = …')",
        ),
        (
            "[node]\n[log]\n[node]\n",
            "evertick.toml:3: this is no TOML, at column 6: cannot declare ('node',) twice; this table is above "
            "already; put all of its keys below one head ('[node]')",
        ),
        (
            'a = "\\q"\n',
            "evertick.toml:1: this is no TOML, at column 8: unescaped '\\' in a string; write it twice, or ",
        ),
        ("a = " + "[" * 5000, "evertick.toml: its values are nested too deeply; make them flatter"),
    ],
)
def test_invalid_toml_is_reported_with_its_line_and_without_its_value(
    problems: Callable[..., list[str]], text: str, line: str
) -> None:
    # The default of an interpreter, because other code in this process may have raised it.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    try:
        with pytest.raises((tomllib.TOMLDecodeError, RecursionError)):
            tomllib.loads(text)
        [found] = problems(text)
    finally:
        sys.setrecursionlimit(limit)
    assert found.startswith(line)
    assert "secret" not in found


def test_a_file_that_is_no_text_or_too_large_is_reported(
    folder: Path, write: Callable[..., Path], problems: Callable[..., list[str]]
) -> None:
    (folder / "latin.toml").write_bytes(b"[jobs.a]\ntask = '\xe4'\n")
    write("#" * (FILE_MAX_BYTES + 1), "long.toml")
    (folder / "dir.toml").mkdir()
    found = problems("include = ['latin.toml', 'long.toml', 'dir.toml']")
    assert found == [
        "evertick.toml:1: dir.toml cannot be read: Is a directory; correct the path, or let this user read it",
        "latin.toml:2: this is no UTF-8; save the file in that encoding",
        f"long.toml: it has more than {FILE_MAX_BYTES} bytes; put parts of it into files to include",
    ]


def test_a_file_that_others_can_write_is_refused_for_root(
    write: Callable[..., Path], problems: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("", "jobs.d/a.toml", mode=0o646)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    [expected] = [each for each in problems("") if each.startswith("jobs.d/a.toml: ")]
    assert "every user can change this file, and so decide what root runs (owner " in expected
    assert f"`chmod go-w {path}`, or set EVERTICK_TRUST_CONFIG=1 to accept it" in expected


def test_all_errors_are_reported_at_once_in_the_order_of_the_files(
    write: Callable[..., Path], problems: Callable[..., list[str]]
) -> None:
    write("[jobs.b]\necho = 1\n[node]\nx = 1\n", "more.toml")
    found = problems(
        "[jobs.a]\nevery = 'x'\n[node]\nlease = 1s\n".replace("1s", "'1x'") + "include = 1\n".replace("include", "y"),
        {"EVERTICK_NODE_LEASES": "1s"},
    )
    assert [each.partition(": ")[0] for each in found] == [
        "evertick.toml:1",
        "evertick.toml:2",
        "evertick.toml:4",
        "evertick.toml:5",
        "EVERTICK_NODE_LEASES",
    ]


def test_the_list_of_errors_is_bounded_and_counts_the_omitted_ones(problems: Callable[..., list[str]]) -> None:
    found = problems("[node]\n" + "".join(f"x{number} = 1\n" for number in range(PROBLEMS_MAX + 7)))
    assert len(found) == PROBLEMS_MAX + 1
    assert found[-1] == "and 7 more"


def test_the_text_of_the_error_is_one_sentence(load: Callable[..., object]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^evertick.toml:2: node.x: no such key; .*; and 1 more: `evertick"):
        load("[node]\nx = 1\ny = 1\n")


def test_a_key_in_two_files_is_reported_with_both_places(
    write: Callable[..., Path], problems: Callable[..., list[str]]
) -> None:
    write(f"[node]\ntz = 'UTC'\n[jobs.a]\n{JOB}[defaults]\noverlap = 'skip'\n", "more.toml")
    found = problems(f"include = ['more.toml']\n[node]\ntz = 'UTC'\n[jobs.a]\n{JOB}[defaults]\noverlap = 'allow'\n")
    assert found == [
        "more.toml:2: node.tz: it is set at evertick.toml:3, too; keep one of them",
        "more.toml:3: jobs.a: it is defined at evertick.toml:4, too; give one of them another name",
        "more.toml:7: defaults.overlap: it is set at evertick.toml:8, too; keep one of them",
    ]


def test_a_file_of_jobs_can_only_have_jobs(write: Callable[..., Path], problems: Callable[..., list[str]]) -> None:
    write(f"[node]\ntz = 'UTC'\n[jobs.a]\n{JOB}", "jobs.d/a.toml")
    [line] = problems("")
    assert line == (
        "jobs.d/a.toml:1: node: a file of jobs holds [jobs.…] and [calendars.…] alone; move it to evertick.toml"
    )


def test_includes_are_bounded_in_depth_and_cycles_are_refused(
    write: Callable[..., Path], problems: Callable[..., list[str]]
) -> None:
    for number in range(DEPTH_MAX + 2):
        write(f"include = ['{number + 1}.toml']", f"{number}.toml")
    [line] = problems("include = ['0.toml']")
    assert line == f"6.toml:1: include: files include each other {DEPTH_MAX} deep; include '7.toml' further up"
    write("include = ['b.toml']", "a.toml")
    write("\ninclude = ['a.toml']", "b.toml")
    [line] = problems("include = ['a.toml']")
    assert line == (
        "b.toml:2: include: a.toml includes itself (a.toml -> b.toml -> a.toml); take one of these includes away"
    )


def test_too_many_files_are_refused(write: Callable[..., Path], problems: Callable[..., list[str]]) -> None:
    for number in range(FILES_MAX):
        write("", f"jobs.d/{number}.toml")
    assert problems("") == [f"jobs.d: these are more than {FILES_MAX} files; join some of them"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${NOPE}", "the environment has no NOPE; set it, or write ${NOPE:-default}"),
        ("a ${b", f"'${{b' {NO_REFERENCE}"),
        ("${a-b}", f"'${{a-b}}' {NO_REFERENCE}"),
    ],
)
def test_an_unknown_reference_is_reported_with_its_line(
    problems: Callable[..., list[str]], value: str, expected: str
) -> None:
    found = problems(
        f"[node]\nname = '{value}'\n[jobs.a]\nevery = '1h'\n[jobs.a.echo]\ntext = 'x'\nheaders.h = '{value}'"
    )
    # And no other error: incomplete parts are not checked further.
    assert found == [f"evertick.toml:2: node.name: {expected}", f"evertick.toml:7: jobs.a.echo.headers.h: {expected}"]


def test_a_missing_reference_hides_the_errors_that_follow_from_it(
    problems: Callable[..., list[str]],
) -> None:
    text = (
        "[database]\naddress = '${A}'\npool_size = 3\n[redis]\naddress = '${A}'\npassword = 'p'\n"
        "[defaults]\ntimeout = '${A}'\n[calendars.c]\nexclude = ['${A}']\n[jobs.a]\nevery = '${A}'\necho = 'x'\n"
    )
    expected = "the environment has no A; set it, or write ${A:-default}"
    assert problems(text) == [
        f"evertick.toml:2: database.address: {expected}",
        f"evertick.toml:5: redis.address: {expected}",
        f"evertick.toml:8: defaults.timeout: {expected}",
        f"evertick.toml:10: calendars.c.exclude.0: {expected}",
        f"evertick.toml:12: jobs.a.every: {expected}",
    ]


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"EVERTICK_NODE_CONCURENCY": "3"},
            "EVERTICK_NODE_CONCURENCY: no key of the configuration has this variable; "
            "it is called 'EVERTICK_NODE_CONCURRENCY'",
        ),
        (
            {"EVERTICK_NODE_CONCURRENCY": "three"},
            "EVERTICK_NODE_CONCURRENCY: node.concurrency: 'three' is no whole number; "
            "write digits without quotes, like 50",
        ),
        (
            {"EVERTICK_NODE_LEASE": "0"},
            "EVERTICK_NODE_LEASE: node.lease: '0' is not a duration; write it with its unit, like '0s'",
        ),
        (
            {"EVERTICK_DATABASE": "sqlite:///a.db", "EVERTICK_DATABASE_URL": "sqlite:///b.db"},
            "EVERTICK_DATABASE_URL: database.url: EVERTICK_DATABASE says otherwise; set one of the two",
        ),
    ],
)
def test_variables_are_checked_like_keys(
    problems: Callable[..., list[str]], environ: dict[str, str], line: str
) -> None:
    assert problems("", environ) == [line]


def test_an_error_of_a_flag_names_the_flag(problems: Callable[..., list[str]]) -> None:
    assert problems("", log__level=("--log-level", "loud")) == [
        '--log-level: log.level: \'loud\' cannot be; write one of "trace", "debug", "info", "warning", "error"'
    ]


def test_an_explicit_file_must_exist(folder: Path) -> None:
    from evertick.config.load import load_configuration

    with pytest.raises(InvalidConfiguration, match=r"no\.toml: cannot be read: No such file or directory; "):
        load_configuration("no.toml", {"HOME": str(folder)})
