"""The model: legal transitions, names, and frozen data."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from evertick import model
from evertick.model import CATCH_UPS, OVERLAPS, TRANSITIONS, Definition, Pause, Reason, State, Verdict


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(State)


def test_done_is_a_final_state() -> None:
    assert TRANSITIONS[State.DONE] == frozenset()


def test_every_live_state_can_end() -> None:
    assert all(State.DONE in TRANSITIONS[state] for state in State if state is not State.DONE)


def test_only_waiting_and_running_runs_can_become_running() -> None:
    into_running = {state for state, following in TRANSITIONS.items() if State.RUNNING in following}
    assert into_running == {State.WAITING, State.RUNNING}


@pytest.mark.parametrize("state", [State.BLOCKED, State.PARKED, State.DISPATCHED])
def test_blocked_and_parked_runs_return_through_waiting(state: State) -> None:
    assert TRANSITIONS[state] == {State.WAITING, State.DONE}


def test_every_state_but_the_first_can_be_reached() -> None:
    reached = set().union(*TRANSITIONS.values())
    assert reached == set(State)


def test_names_of_states_and_verdicts_match_the_ledger() -> None:
    assert [state.value for state in State] == ["waiting", "blocked", "parked", "running", "dispatched", "done"]
    assert [verdict.value for verdict in Verdict] == ["succeeded", "failed", "cancelled", "skipped", "missed", "lost"]
    assert CATCH_UPS == ("latest", "all", "skip")
    assert OVERLAPS == ("skip", "queue", "allow", "replace")
    assert all(reason.value == reason.name.lower() for reason in Reason)


def test_all_data_is_frozen() -> None:
    structs = [each for _, each in inspect.getmembers(model, inspect.isclass) if issubclass(each, msgspec.Struct)]
    own = [each for each in structs if each.__module__ == model.__name__]
    assert len(own) > 10
    assert all(each.__struct_config__.frozen for each in own)


def test_a_definition_survives_json_and_keeps_its_defaults_short() -> None:
    definition = Definition(task="job", when="every 1h")
    data = msgspec.json.encode(definition)
    assert data == b'{"task":"job","when":"every 1h"}'
    assert msgspec.json.decode(data, type=Definition) == definition


def test_a_pause_survives_json() -> None:
    pause = Pause(at=1, note="why", until=5, is_undeclared=True)
    assert msgspec.json.decode(msgspec.json.encode(pause), type=Pause) == pause
