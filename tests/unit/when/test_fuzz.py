"""Properties of rules and their texts, on random bytes, in the available time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import ModuleType

import pytest
import test_cron_text
import test_cron_words
import test_duration
import test_english
import test_text

from long_tests import seconds_for

MINUTES = 2.0


def properties(*modules: ModuleType) -> list[Callable[..., object]]:
    """Properties whose arguments all come from Hypothesis."""
    return [
        test
        for module in modules
        for name, test in sorted(vars(module).items())
        if name.startswith("test_") and hasattr(test, "hypothesis") and not hasattr(test, "pytestmark")
    ]


PROPERTIES = properties(test_cron_text, test_cron_words, test_duration, test_english, test_text)


@pytest.mark.long("fuzz")
@pytest.mark.timeout(0)
def test_the_properties_of_rules_hold_on_random_bytes() -> None:
    assert len(PROPERTIES) >= 10
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, until, tried = random.Random(seed), time.monotonic() + seconds_for(MINUTES * 60), 0
    while time.monotonic() < until:
        for test in PROPERTIES:
            test.hypothesis.fuzz_one_input(chance.randbytes(chance.randrange(8, 2_000)))  # type: ignore[attr-defined]
            tried += 1
    print(f"{tried} examples")
    assert tried > 1_000
