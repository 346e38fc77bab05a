"""The checker of the storm is not blind: whatever is doctored in good evidence, it sees, and as what it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from torment.catalogue import RATE_MOST, Entry
from torment.checker import CHILDREN_GONE_SECONDS, Evidence, FindingKind, GapRow, Process, RunRow, check, killed_at
from torment.faults import KINDS, plan_of
from torment.figures import percentile, recoveries_of
from torment.witness import Word, Write

NODE, OTHER, CHILD = 100, 200, 101
UNTIL = 1_010
QUICK = Entry("quick", "quick", 2)
ONCE = Entry("once", "once", 5)
FAILING = Entry("failing", "failing", 5)
GUARDED = Entry("guarded", "guarded", 5)
SPAWNING = Entry("child", "child", 5)
RATED = Entry("rated", "rated", 1)
PLACED = Entry("placed", "placed", 5)
ENTRIES = (QUICK, ONCE, FAILING, GUARDED, SPAWNING, RATED, PLACED)


def run_of(entry: Entry, moment: int) -> RunRow:
    verdict, reason = ("failed", "error") if entry.kind == "failing" else ("succeeded", None)
    return RunRow(entry.key, moment, f"{entry.key}@{moment}", verdict, "done", reason, moment, 0)


def words_of(run: RunRow, entry: Entry) -> list[Word]:
    speaker = CHILD if entry.kind == "child" else NODE
    end = "failed" if entry.kind == "failing" else "end"
    about = (run.key, run.moment, run.run, run.fence or 0, NODE, speaker)
    # The clock of the witnesses is another than the store's.
    return [
        Word("start", *about, run.moment - 900.0, float(run.moment)),
        Word(end, *about, run.moment - 899.9, float(run.moment)),  # type: ignore[arg-type]
    ]


def good_evidence() -> Evidence:
    """Ten seconds of a fleet with which nothing is wrong; the first moment of `quick` was missed and is a gap."""
    runs = [
        run_of(entry, moment)
        for entry in ENTRIES
        for moment in range(1_000 + entry.seconds, UNTIL + 1, entry.seconds)
        if not (entry is QUICK and moment == 1_002)
    ]
    entries = {entry.key: entry for entry in ENTRIES}
    return Evidence(
        entries=ENTRIES,
        created=dict.fromkeys(entries, 1_000.5),
        until=UNTIL,
        cursors=dict.fromkeys(entries, UNTIL + 5),
        runs=runs,
        gaps=[GapRow("quick", 1_002, 1_002, 1, "coalesced")],
        words=[word for run in runs for word in words_of(run, entries[run.key])],
        writes=[
            Write("guarded", run.fence or 0, True, run.run, NODE, run.moment - 899.95, True)
            for run in runs
            if run.key == "guarded"
        ],
        processes=[Process(NODE, None), Process(OTHER, None)],
    )


def test_good_evidence_has_no_findings() -> None:
    assert check(good_evidence()) == []


def without_run(evidence: Evidence) -> Evidence:
    runs = [run for run in evidence.runs if run.run != "quick@1006"]
    return evidence._replace(runs=runs, words=[word for word in evidence.words if word.run != "quick@1006"])


def with_a_gap_that_counts_wrong(evidence: Evidence) -> Evidence:
    return evidence._replace(gaps=[evidence.gaps[0]._replace(moments=2)])


def with_a_start_that_the_ledger_has_forgotten(evidence: Evidence) -> Evidence:
    return evidence._replace(words=[*evidence.words, evidence.words[0]._replace(run="nobody's")])


def with_a_second_run(evidence: Evidence) -> Evidence:
    second = run_of(QUICK, 1_006)._replace(run="again", verdict="lost", losses=3)
    return evidence._replace(runs=[*evidence.runs, second])


def with_a_run_and_a_gap(evidence: Evidence) -> Evidence:
    return evidence._replace(gaps=[*evidence.gaps, GapRow("quick", 1_004, 1_006, 2, "coalesced")])


def with_a_run_between_moments(evidence: Evidence) -> Evidence:
    return evidence._replace(runs=[*evidence.runs, run_of(QUICK, 1_007)._replace(verdict="lost", losses=3)])


def with_a_claim_started_twice(evidence: Evidence) -> Evidence:
    return evidence._replace(words=[*evidence.words, evidence.words[0]])


def with_a_second_start_of_what_must_not_run_twice(evidence: Evidence) -> Evidence:
    start = next(word for word in evidence.words if word.key == "once")
    return evidence._replace(words=[*evidence.words, start._replace(fence=start.fence + 1, node=OTHER)])


def with_an_unseen_success(evidence: Evidence) -> Evidence:
    return evidence._replace(words=[word for word in evidence.words if (word.what, word.run) != ("end", "quick@1004")])


def with_a_success_seen_under_another_fence(evidence: Evidence) -> Evidence:
    runs = [run._replace(fence=9_999) if run.run == "quick@1004" else run for run in evidence.runs]
    return evidence._replace(runs=runs)


def with_a_failure_of_what_cannot_fail(evidence: Evidence) -> Evidence:
    runs = [run._replace(verdict="failed") if run.run == "quick@1004" else run for run in evidence.runs]
    return evidence._replace(runs=runs)


def with_a_success_of_what_must_fail(evidence: Evidence) -> Evidence:
    words = [word._replace(what="end") if word.what == "failed" else word for word in evidence.words]
    runs = [run._replace(verdict="succeeded") if run.key == "failing" else run for run in evidence.runs]
    return evidence._replace(runs=runs, words=words)


def with_a_run_given_up_after_two_losses(evidence: Evidence) -> Evidence:
    runs = [run._replace(verdict="lost", losses=2) if run.run == "quick@1004" else run for run in evidence.runs]
    return evidence._replace(runs=runs)


def with_a_grandchild_left(evidence: Evidence) -> Evidence:
    return evidence._replace(survivors=("4711 (sleep 1000)",))


def with_an_older_write_accepted(evidence: Evidence) -> Evidence:
    late = evidence.writes[0]._replace(at=evidence.writes[-1].at + 0.1, is_first=False)
    return evidence._replace(writes=[*evidence.writes, late])


def with_a_start_under_an_older_fence(evidence: Evidence) -> Evidence:
    late = evidence.writes[0]._replace(at=evidence.writes[-1].at + 0.1, is_accepted=False)
    return evidence._replace(writes=[*evidence.writes, late])


def with_a_child_after_the_kill_of_its_node(evidence: Evidence) -> Evidence:
    last = next(word.at for word in evidence.words if word.run == "child@1010" and word.what == "end")
    killed_at = last - CHILDREN_GONE_SECONDS - 0.1
    return evidence._replace(processes=[Process(NODE, killed_at), Process(OTHER, None)])


def with_no_place_left(evidence: Evidence) -> Evidence:
    start = next(word for word in evidence.words if word.key == "placed")
    return evidence._replace(words=[*evidence.words, start._replace(what="full", at=start.at + 0.01)])


def with_one_claim_too_many_in_a_period(evidence: Evidence) -> Evidence:
    rated = [word for word in evidence.words if word.key == "rated" and word.what == "start"][: RATE_MOST + 1]
    others = [word for word in evidence.words if word not in rated]
    return evidence._replace(words=others + [word._replace(claimed_at=1_003.0) for word in rated])


def with_a_run_that_never_ended(evidence: Evidence) -> Evidence:
    runs = [run._replace(verdict=None, state="waiting") if run.run == "quick@1010" else run for run in evidence.runs]
    return evidence._replace(runs=runs)


def with_a_run_of_a_fleet_that_has_stopped(evidence: Evidence) -> Evidence:
    later = run_of(QUICK, UNTIL + 2)._replace(verdict=None, state="running")
    return evidence._replace(runs=[*evidence.runs, later])


def with_a_schedule_that_stands_still(evidence: Evidence) -> Evidence:
    return evidence._replace(cursors={**evidence.cursors, "quick": UNTIL})


def with_a_process_that_ended_by_itself(evidence: Evidence) -> Evidence:
    return evidence._replace(processes=[Process(NODE, None, own_exit=70), Process(OTHER, None)])


@pytest.mark.parametrize(
    ("doctored", "kind"),
    [
        (without_run, "lost"),
        (with_a_gap_that_counts_wrong, "lost"),
        (with_a_start_that_the_ledger_has_forgotten, "lost"),
        (with_a_second_run, "doubled"),
        (with_a_run_and_a_gap, "doubled"),
        (with_a_run_between_moments, "doubled"),
        (with_a_claim_started_twice, "started twice"),
        (with_a_second_start_of_what_must_not_run_twice, "started twice"),
        (with_an_unseen_success, "unwitnessed"),
        (with_a_success_seen_under_another_fence, "unwitnessed"),
        (with_a_failure_of_what_cannot_fail, "wrong verdict"),
        (with_a_success_of_what_must_fail, "wrong verdict"),
        (with_a_run_given_up_after_two_losses, "wrong verdict"),
        (with_a_grandchild_left, "outlived"),
        (with_an_older_write_accepted, "unfenced"),
        (with_a_start_under_an_older_fence, "unfenced"),
        (with_a_child_after_the_kill_of_its_node, "outlived"),
        (with_no_place_left, "limit passed"),
        (with_one_claim_too_many_in_a_period, "limit passed"),
        (with_a_run_that_never_ended, "stuck"),
        (with_a_run_of_a_fleet_that_has_stopped, "stuck"),
        (with_a_schedule_that_stands_still, "stuck"),
        (with_a_process_that_ended_by_itself, "ended by itself"),
    ],
)
def test_what_is_doctored_is_found(doctored: Callable[[Evidence], Evidence], kind: FindingKind) -> None:
    assert {finding.kind for finding in check(doctored(good_evidence()))} == {kind}


def test_a_node_that_was_frozen_may_come_late_without_a_finding() -> None:
    evidence = with_a_start_under_an_older_fence(good_evidence())
    thawed_at = evidence.writes[-1].at - 0.1
    frozen = evidence._replace(processes=[Process(NODE, None, ((thawed_at - 5, thawed_at),)), Process(OTHER, None)])
    assert check(frozen) == []
    long_ago = evidence._replace(processes=[Process(NODE, None, ((1.0, 6.0),)), Process(OTHER, None)])
    assert {finding.kind for finding in check(long_ago)} == {"unfenced"}


def test_a_place_that_a_frozen_node_sits_in_is_no_finding() -> None:
    evidence = with_no_place_left(good_evidence())
    full = evidence.words[-1]
    # The run had a node before, which has not come to its end of it.
    sitting = full._replace(what="start", fence=full.fence - 1, node=OTHER, at=full.at - 4.0)
    frozen = evidence._replace(
        words=[*evidence.words, sitting],
        processes=[Process(NODE, None), Process(OTHER, None, ((full.at - 3.9, full.at + 1.0),))],
    )
    assert check(frozen) == []


def test_recovery_is_counted_from_the_kill_to_the_next_start_of_what_was_at_work() -> None:
    evidence = good_evidence()
    at_work = next(word for word in evidence.words if word.run == "quick@1008")
    again = at_work._replace(fence=at_work.fence + 1, node=OTHER, at=at_work.at + 4.5)
    words = [word for word in evidence.words if (word.what, word.run) != ("end", "quick@1008")]
    killed = evidence._replace(words=[*words, again], processes=[Process(NODE, at_work.at + 1.0), Process(OTHER, None)])
    assert [(round(each.seconds, 3), each.is_calm) for each in recoveries_of(killed, [])] == [(3.5, True)]
    late = killed._replace(processes=[Process(NODE, again.at + 1.0), Process(OTHER, None)])
    assert recoveries_of(late, []) == [], "it was started elsewhere before the kill"


def test_the_same_seed_plans_the_same_storm_and_every_kind_of_fault_is_in_it() -> None:
    plan = plan_of(7, 90, nodes=5, every=2.0)
    assert plan == plan_of(7, 90, nodes=5, every=2.0)
    assert plan != plan_of(8, 90, nodes=5, every=2.0)
    assert {fault.kind for fault in plan} == set(KINDS)
    assert all(fault.at >= 0 and fault.at + fault.seconds < 90 for fault in plan)


def test_a_node_has_one_fault_at_a_time() -> None:
    for slot in range(-1, 5):
        faults = [fault for fault in plan_of(3, 600, nodes=5, every=1.5) if fault.slot == slot]
        assert len(faults) > 10
        for first, second in itertools.pairwise(faults):
            assert first.at + first.seconds < second.at


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(number) for number in range(1, 101)], 0.99) == 99.0
    assert percentile([5.0], 0.99) == 5.0


def test_a_process_is_not_taken_for_an_earlier_one_with_its_number() -> None:
    evidence = good_evidence()
    last = next(word.at for word in evidence.words if word.run == "child@1010" and word.what == "end")
    killed_before = Process(NODE, last - CHILDREN_GONE_SECONDS - 0.1)
    again = evidence._replace(processes=[killed_before, Process(NODE, None, began_at=last - 0.1), Process(OTHER, None)])
    late = [word for word in again.words if word.node == NODE and word.at >= last - 0.1]
    assert late
    assert all(killed_at(again, word) is None for word in late)
    assert any(killed_at(again, word) is not None for word in again.words if word.at < last - 0.1)
