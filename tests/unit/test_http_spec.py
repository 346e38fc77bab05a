"""Specifications of HTTP jobs, and their refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from evertick import Http, HttpBasic, HttpExpect, InvalidInput, Secret
from evertick.driver.http.request import signature
from evertick.driver.http.spec import HttpSettings, method_of, signing_keys_of, statuses_of
from evertick.driver.registry import check_spec, spec_from

URL = "https://example.org/hook"


def error_of(**fields: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        check_spec("hook", Http(**{"url": URL, **fields}))
    return str(refused.value)


def test_a_url_alone_is_a_complete_job() -> None:
    spec = spec_from("http", URL)
    assert spec == Http(URL)
    check_spec("hook", spec)


def test_a_table_of_a_file_is_a_job() -> None:
    spec = spec_from(
        "http",
        {
            "url": {"secret": "HOOK_URL"},
            "headers": {"X-Key": {"secret": "KEY"}, "X-Run": "{run_id}"},
            "json": {"at": "{fire_at}", "who": "{args.who}"},
            "sign": [{"secret": "NEW"}, {"secret": "OLD"}],
            "expect": {"status": [200, "3xx"], "json": {"/state": "ok"}},
            "timeout": "10s",
            "allow": ["10.0.0.0/8", "localhost"],
        },
    )
    assert isinstance(spec, Http)
    check_spec("hook", spec)
    assert (method_of(spec), signing_keys_of(spec)) == ("POST", (Secret("NEW"), Secret("OLD")))


def test_a_job_with_a_body_is_a_post_by_default() -> None:
    specs = Http(URL), Http(URL, body="x"), Http(URL, json={}, method="put")
    assert list(map(method_of, specs)) == ["GET", "POST", "PUT"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "example.org"}, "url: 'example.org' is not an http or https URL; write it like 'https://host/path'"),
        ({"url": "ftp://example.org"}, "url: 'ftp://example.org' is not an http or https URL"),
        ({"url": "https://:80/"}, "url: 'https://:80/' is not an http or https URL"),
        ({"url": "https://x:99999/"}, "url: 'https://x:99999/' is not a valid URL: "),
        ({"url": "https://u:pw@x/"}, "url: a password in the URL would be shown in listings"),
        ({"url": "https://x/a b"}, "url: 'https://x/a b' contains the character ' '; write it as %20"),
        ({"url": "https://x/#top"}, "url: 'https://x/#top' has a fragment (#…); remove it"),
        ({"url": "https://{args.host}/"}, "url: 'https://{args.host}/' has a placeholder in its host"),
        ({"url": "https://x/{run}"}, "url: {run} is not a value of a run; it is called {run_id}"),
        ({"url": "https://x/" + "y" * 8000}, "has more than 8000 characters"),
        ({"url": Secret("a b")}, "url: 'a b' is not a valid name of a secret"),
        ({"method": "GET IT"}, "method: 'GET IT' is not an allowed HTTP method; write one like 'POST'"),
        ({"method": "CONNECT"}, "method: 'CONNECT' is not an allowed HTTP method"),
        ({"headers": {"A B": "x"}}, "headers: 'A B' is not a valid header name"),
        ({"headers": {"Host": "x"}}, "headers: 'Host' cannot be set: it is taken from the url; remove it"),
        ({"headers": {"X-A": "x", "x-a": "y"}}, "headers: 'x-a' is given twice (header names are case-insensitive)"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, r"headers: 'X-A': the character '\r' is not allowed in a header"),
        ({"headers": {"X-A": "{nothing}"}}, "headers: 'X-A': {nothing} is not a value of a run"),
        ({"headers": {"X-A": 5}}, "headers"),
        (
            {"headers": {"authorization": "x"}, "bearer": Secret("T")},
            "bearer and headers: Authorization both set credentials; keep one of them",
        ),
        (
            {"basic": HttpBasic(user="a:b", password=Secret("P"))},
            "basic: user: 'a:b' must be printable and without ':'",
        ),
        ({"json": {}, "body": ""}, "json and body both set the request body; keep one of them"),
        ({"json": {"a": ["{what}"]}}, "json: {what} is not a value of a run"),
        ({"body": "{what}"}, "body: {what} is not a value of a run"),
        ({"body": '{"a": "{run_id}"}'}, "body: it is JSON without a Content-Type; write it as json = …"),
        (
            {"body": '{"a": {run_id}', "headers": {"Content-Type": "application/json"}},
            "body: it is not JSON, but its Content-Type is 'application/json'",
        ),
        ({"body": "x" * (1024 * 1024 + 1)}, "body: it has more than 1048576 bytes"),
        ({"sign": ()}, "sign: 0 secrets are not allowed; give 1 to 5"),
        ({"timeout": "0s"}, "timeout: '0s' must be between 10ms and 1d"),
        ({"timeout": "soon"}, "timeout"),
        ({"redirects": 21}, "redirects: 21 must be a whole number from 0 to 20"),
        ({"read_limit": -1}, "read_limit: -1 must be between 0 and"),
        ({"read_limit": "17MiB"}, "read_limit: '17MiB' is more than 16MiB"),
        ({"read_limit": "64K"}, "read_limit: '64K' is not a size; write it as '64KiB'"),
        ({"allow": ("10.0.0.1/8",)}, "allow: '10.0.0.1/8' is an address within a network"),
        (
            {"expect": HttpExpect(status="ok")},
            "expect: status: 'ok' is not a status; write it like 204, '2xx' or '200-204'",
        ),
        ({"expect": HttpExpect(status=())}, "expect: status: the list is empty; write ['2xx']"),
        ({"expect": HttpExpect(contains="")}, "expect: contains: '' must have 1 to 1000 characters"),
        ({"expect": HttpExpect(matches="(")}, "expect: matches: '(' is not a valid regular expression: "),
        (
            {"expect": HttpExpect(json={"state": 1})},
            "expect: json: 'state' is not a JSON pointer; write it like '/state'",
        ),
    ],
)
def test_an_invalid_field_is_refused_with_the_task_the_field_and_the_fix(fields: dict[str, Any], words: str) -> None:
    message = error_of(**fields)
    assert message.startswith("task 'hook': http")
    assert words in message


def test_a_url_with_a_password_is_not_repeated_in_the_error() -> None:
    assert "geheim" not in error_of(url="https://me:geheim@example.org/")


def test_a_body_of_any_kind_can_have_braces_and_placeholders() -> None:
    kind = {"content-type": "application/vnd.x+json; charset=utf-8"}
    check_spec("hook", Http(URL, body='{"a": "{run_id}", "b": {args.deep.er}, "c": {args}}', headers=kind))
    check_spec("hook", Http(URL, body="[run] {run_id} {"))


@pytest.mark.parametrize(
    ("given", "codes"),
    [(204, {204}), ("2xx", set(range(200, 300))), (("200-202", 404, "404"), {200, 201, 202, 404}), ("204", {204})],
)
def test_a_status_is_a_code_a_class_or_a_range(given: Any, codes: set[int]) -> None:
    assert statuses_of(given, "status") == codes


def test_the_settings_of_a_node_are_checked() -> None:
    HttpSettings(allow=("10.0.0.0/8",)).check()
    with pytest.raises(InvalidInput, match=r"^http: allow: 'x/y' is not a network"):
        HttpSettings(allow=("x/y",)).check()


def test_a_signature_follows_the_standard() -> None:
    """The example in the specification of Standard Webhooks."""
    headers = signature(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_without_httpx_the_error_names_the_package_to_install() -> None:
    code = (
        "import sys\nsys.modules['httpx'] = sys.modules['httpcore'] = None\n"
        "from evertick import Http, InvalidSetting, Scheduler\n"
        "scheduler = Scheduler('sqlite://', drivers=['http'])\n"
        "try:\n    scheduler.job('hook', Http('https://example.org/'))\n"
        "except InvalidSetting as refused:\n    print(refused)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "task 'hook': http: httpcore is not installed; pip install 'evertick[http]'\n", done.stderr
