"""Zones: every clock change is known, and different rules have different fingerprints."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo, available_timezones

import pytest

from evertick.errors import InvalidWhen
from evertick.when.zone import END, changes, offset_at, spans, zone_fingerprint, zone_named

ZONES = sorted(available_timezones() - {"localtime"})
GAP_RULES = ("literal", "skip", "cron", "shift")


def written_changes(name: str) -> list[tuple[int, int, int]] | None:
    """The changes in the zone's file, read by its format (RFC 8536, second block)."""
    path = next((Path(root, name) for root in TZPATH if Path(root, name).is_file()), None)
    if path is None:
        return None
    data = path.read_bytes()

    def counts(at: int) -> tuple[int, ...]:
        assert data[at : at + 4] == b"TZif"
        return struct.unpack(">6l", data[at + 20 : at + 44])

    isut, isstd, leap, times, types, chars = counts(0)
    at = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    isut, isstd, leap, times, types, chars = counts(at)
    at += 44
    instants = struct.unpack(f">{times}q", data[at : at + times * 8])
    kinds = data[at + times * 8 : at + times * 9]
    table = at + times * 9
    offsets = [struct.unpack(">l", data[table + 6 * kind : table + 6 * kind + 4])[0] for kind in range(types)]
    before = [offsets[0], *(offsets[kind] for kind in kinds)]
    listed = zip(instants, before, before[1:], strict=False)
    return [(at, old, new) for at, old, new in listed if old != new and 0 <= at < END]


@pytest.mark.parametrize("letter", sorted({zone[0] for zone in ZONES}))
def test_every_change_that_a_zone_file_lists_is_found(letter: str) -> None:
    for name in (zone for zone in ZONES if zone[0] == letter):
        listed = written_changes(name)
        if listed:
            found = [tuple(change) for change in changes(ZoneInfo(name)) if 0 <= change.at <= listed[-1][0]]
            assert found == listed, name


@pytest.mark.parametrize("name", ["Europe/Berlin", "Africa/Casablanca", "Asia/Gaza", "Australia/Lord_Howe", "UTC"])
def test_the_offset_is_constant_between_two_changes(name: str) -> None:
    zone = ZoneInfo(name)
    edges = iter([*changes(zone), None])
    following = next(edges)
    offset = offset_at(zone, -86_400)
    for at in range(-86_400, END, 17 * 3600):
        while following is not None and following.at <= at:
            assert (following.before, following.after) == (
                offset_at(zone, following.at - 1),
                offset_at(zone, following.at),
            )
            offset, following = following.after, next(edges)
        assert offset_at(zone, at) == offset


def test_no_two_changes_are_too_close_for_the_search_step() -> None:
    for name in ZONES:
        known = changes(ZoneInfo(name))
        assert all(b.at - a.at > 6 * 86_400 for a, b in pairwise(known)), name


@pytest.mark.parametrize("rule", GAP_RULES)
def test_spans_are_in_order_and_do_not_overlap(rule: str) -> None:
    for name in ZONES[::7]:
        found = spans(ZoneInfo(name), rule)  # type: ignore[arg-type]
        assert all(a.end <= b.start for a, b in pairwise(found)), name
        assert all(span.start < span.end and span.offsets for span in found), name


def test_literal_spans_are_complete() -> None:
    found = spans(ZoneInfo("Europe/Berlin"), "literal")
    assert all(a.end == b.start for a, b in pairwise(found))
    assert found[0].start < 0
    assert found[-1].end > END


def test_the_day_that_samoa_skipped_is_one_change_of_a_day() -> None:
    skipped = [change for change in changes(ZoneInfo("Pacific/Apia")) if change.after - change.before == 86_400]
    assert [datetime.fromtimestamp(change.at, UTC) for change in skipped] == [datetime(2011, 12, 30, 10, tzinfo=UTC)]


def test_zones_with_the_same_rules_share_a_fingerprint_and_others_do_not() -> None:
    assert zone_fingerprint("Europe/Berlin") == zone_fingerprint(ZoneInfo("Europe/Berlin"))
    assert zone_fingerprint("Etc/UTC") == zone_fingerprint("UTC")
    names = ["UTC", "Europe/Berlin", "Europe/London", "America/New_York", "Asia/Kolkata", "Etc/GMT-5"]
    assert len({zone_fingerprint(name) for name in names}) == len(names)
    assert len(zone_fingerprint("UTC")) == 16


@pytest.mark.parametrize(
    "name",
    ["", "Mars/Base", "../../etc/passwd", "/etc/passwd", "Europe", "a" * 10_000, "\0", "é", None, 5, "localtime"],
)
def test_an_invalid_zone_is_refused(name: object) -> None:
    with pytest.raises(InvalidWhen) as refused:
        zone_named(name)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("name", ["right/Europe/Berlin", "posix/Europe/Berlin"])
def test_zones_that_count_leap_seconds_or_depend_on_the_machine_are_refused(name: str) -> None:
    with pytest.raises(InvalidWhen, match="IANA"):
        zone_named(name)


def test_a_zoneinfo_is_accepted_by_its_name() -> None:
    assert zone_named(ZoneInfo("Europe/Berlin")).key == "Europe/Berlin"


def test_the_offset_is_that_of_the_standard_library() -> None:
    moment = datetime(2026, 7, 1, tzinfo=UTC)
    assert offset_at(ZoneInfo("Europe/Berlin"), int(moment.timestamp())) == 7200
    assert moment.astimezone(ZoneInfo("Europe/Berlin")).utcoffset() == timedelta(hours=2)
