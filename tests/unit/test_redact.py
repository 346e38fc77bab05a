"""No password in a URL is shown, in any spelling."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick import Scheduler
from evertick.definition.settings import check_url
from evertick.errors import InvalidInput, InvalidSetting
from evertick.text.redact import masked, masked_within, shown_value


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:secret@h:5432/db", "postgresql://shop:***@h:5432/db"),
        ("postgresql://shop@h/db?schema=s2&timeout=5s", "postgresql://shop@h/db?schema=s2"),
        ("postgresql://shop@h/db?schema=My-App&timeout=5s", "postgresql://shop@h/db"),
        ("postgresql://h1:1,h2:2/db", "postgresql://h1:1,h2:2/db"),
        ("postgresql://[::1]:7000/db", "postgresql://[::1]:7000/db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db"),
        ("postgresql://shop:sec/ret@h/db", "postgresql://***@h/db"),
        ("postgresql://shop:sec#ret@h/db", "postgresql://***@h/db"),
        ("postgresql://shop:sec?ret@h/db", "postgresql://***@h/db"),
        ("postgresql://shop:sec@ret@h/db", "postgresql://***@h/db"),
        ("postgresql://shop:s[e]c@h/db", "postgresql://shop:***@h/db"),
        ("postgresql:/shop:secret@h/db", "postgresql:/***@h/db"),
        ("postgres:secret@h/db", "postgres:***@h/db"),
        ("postgresql://shop:secret", "postgresql://***"),
        ("postgresql://shop:secret/db", "postgresql://***/db"),
        ("postgresql://h/db?password=secret", "postgresql://h/db"),
        ("postgresql://a:secret@h/db?listen=postgresql://b:secret@h2/db&schema=s", "postgresql://a:***@h/db?schema=s"),
        ("postgresql://h/db?schema=s&listen=postgresql://b:secret@h2/db", "postgresql://h/db?schema=s"),
        ("host=h password='a secret@x'", "host=h password=***"),
        ("shop:secret@h/db", "shop:***@h/db"),
        ("nats://TOKEN@h:4222", "nats://***@h:4222"),
        ("tls://TOKEN@h,tls://TOKEN@h2", "tls://***@h2"),
        ("nats://user:secret@h", "nats://user:***@h"),
        ("redis://secret@h/0", "redis://***@h/0"),
        ("redis://:secret@h/0", "redis://:***@h/0"),
        ("https://TOKEN@h/x", "https://***@h/x"),
        ("postgresql+asyncpg://shop@h/db", "postgresql+asyncpg://shop@h/db"),
        ("sqlite:////home/me@work/jobs.db?synchronous=normal", "sqlite:////home/me@work/jobs.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl https://h/x | mail ops@h", "curl https://h/x | mail ops@h"),
        (
            "curl 'https://TOKEN@h/x'; curl \"http://u:secret@h:80/?a=1\"",
            "curl 'https://***@h/x'; curl \"http://***@h:80/?a=1\"",
        ),
        ("curl https://h:8080/send?to=ops@h", "curl https://h:8080/send?to=ops@h"),
        ("psql postgresql://u:sec/ret@h/db", "psql postgresql://***@h/db"),
        ("psql postgresql://u:s@cret/x@h/db", "psql postgresql://***@h/db"),
    ],
)
def test_a_text_is_shown_without_the_credentials_in_its_urls(text: str, shown: str) -> None:
    assert masked_within(text) == shown


@given(
    scheme=st.sampled_from(["postgresql://", "postgres:/", "postgresql:", "mysql+x://", ""]),
    user=st.text("abc/?#@:[]%&= ", max_size=4),
    password=st.text("XYZ/?#@:[]%&= ", min_size=1, max_size=9).map(lambda text: f"Q{text}Q"),
    database=st.sampled_from(["h/db", "h:5432/db?schema=s", "h1,h2:2/db?timeout=5s#x", "h/db?listen=off"]),
)
def test_no_part_of_a_password_in_a_url_is_shown(scheme: str, user: str, password: str, database: str) -> None:
    assert not set("QXYZ") & set(masked(f"{scheme}{user}:{password}@{database}"))


@pytest.mark.parametrize("url", ["postgresql:/shop:secret@h/db", "postgres:secret@h/db", "postgresql:secret"])
def test_a_url_without_slashes_is_refused_with_the_correct_form(url: str) -> None:
    with pytest.raises(
        InvalidSetting, match="write it like 'postgresql://user:password@host:5432/database'"
    ) as refused:
        check_url(url)
    assert "secret@" not in str(refused.value)


def test_settings_do_not_show_their_password() -> None:
    url = "postgresql://shop:secret@h/db?listen=postgresql://shop:secret@h2/db&schema=s"
    settings = Scheduler(url, node_name="n").settings
    assert settings.url == url
    assert "secret" not in f"{settings} {settings!r}"
    assert "url='postgresql://shop:***@h/db?schema=s', app='default'" in repr(settings)


def test_a_url_in_another_setting_is_shown_without_its_password() -> None:
    with pytest.raises(InvalidSetting, match="it is called url") as refused:
        Scheduler(dsn="postgresql://shop:secret@h/db")  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://shop:s3cret@x/y",
        "host=x password=s3cret",
        {"host": "x", "password": "s3cret"},
        ["postgresql://shop:s3cret@x/y"],
    ],
)
def test_a_url_passed_as_connection_is_shown_without_its_password(given: object, tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db")

    @scheduler.task
    def charge() -> None: ...

    with pytest.raises(InvalidInput, match="connection: ") as refused:
        charge.options(connection=given).sync.enqueue()
    scheduler.sync.close()
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in shown_value(given)


def test_a_url_without_a_secret_is_shown_unchanged() -> None:
    assert shown_value(7) == "7"
    assert shown_value("jobs.db") == "'jobs.db'"
    assert len(shown_value(list(range(1_000)))) == 200
