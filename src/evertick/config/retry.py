"""A retry policy as data: one kind of policy with its first wait, and its options.

    { constant = "30s", attempts = 3 }
    { linear = "10s", increment = "10s", limit = "5m", attempts = 5 }
    { exponential = "1s", factor = 2, limit = "1h", attempts = 5, jitter = 0.2 }

They are those of `evertick.policy`, with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evertick.config.problem import phrased
from evertick.errors import EvertickError
from evertick.model.retry import Constant, Exponential, Linear, RetryPolicy
from evertick.text.did_you_mean import alike, nearest

__all__ = ["read_retry"]

# Each with the name that its first wait has in code.
_POLICIES: dict[str, tuple[type[RetryPolicy], str]] = {
    "constant": (Constant, "interval"),
    "linear": (Linear, "initial"),
    "exponential": (Exponential, "initial"),
}
_OPTIONS = {
    "constant": ("attempts", "jitter"),
    "linear": ("increment", "limit", "attempts", "jitter"),
    "exponential": ("factor", "limit", "attempts", "jitter"),
}
# Of what is no duration.
_RIGHT = {"attempts": 1, "jitter": 0, "factor": 1}
_OPTIONAL = {"constant": ("jitter",), "linear": ("jitter",), "exponential": _OPTIONS["exponential"]}


def read_retry(value: Any, refuse: Callable[..., None]) -> RetryPolicy | None:
    """The policy; None where it is wrong, which `refuse` is told: what, and perhaps of which key."""
    if not isinstance(value, dict):
        refuse(f'{value!r:.60} is no policy; write it like {{ exponential = "1s", attempts = 5 }}')
        return None
    kinds = [name for name in _POLICIES if name in value]
    if len(kinds) != 1:
        _refuse_kinds(kinds, value, refuse)
        return None
    return _made(kinds[0], value, refuse)


def _refuse_kinds(kinds: list[str], value: dict[str, Any], refuse: Callable[..., None]) -> None:
    """None of the kinds is there, perhaps since it is misspelt; or several are."""
    known = dict.fromkeys([*_POLICIES, *(name for options in _OPTIONS.values() for name in options)])
    for name in value:
        if name not in known:
            refuse(f"no such key; {nearest(name, known, what='there are')}", name)
    if kinds:
        refuse(f"{' and '.join(kinds)} say how long to wait; keep one of them")
    elif value.keys() <= known.keys():
        example = '{ constant = "30s", attempts = 3 }'
        refuse(f"write exactly one of {', '.join(_POLICIES)} with its first wait, like {example}")


def _made(kind: str, value: dict[str, Any], refuse: Callable[..., None]) -> RetryPolicy | None:
    unknown = [name for name in value if name not in (kind, *_OPTIONS[kind])]
    for name in unknown:
        refuse(f"no such key; {nearest(name, _OPTIONS[kind], what=f'beside {kind} there are')}", name)
    # One that is misspelt is not missing besides.
    known = {*value, *(alike(name, _OPTIONS[kind]) for name in unknown)}
    missing = [name for name in _OPTIONS[kind] if name not in known and name not in _OPTIONAL[kind]]
    if missing:
        refuse(f"{kind} needs {', '.join(missing)}, too")
    if unknown or missing:
        return None
    policy, first = _POLICIES[kind]
    options = {first if name == kind else name: each for name, each in value.items()}
    told: set[str] = set()
    while True:
        try:
            made = policy(**options)
            return None if told else made
        except EvertickError as wrong:
            name = wrong.setting or str(wrong).partition(": ")[0]
            refuse(phrased(wrong, f"{name}: ", value=options.get(name)), kind if name == first else name)
            if name in told or name not in options:
                return None
            # With a right one in its place, what else is wrong is told, too.
            options[name] = _RIGHT.get(name, "1s")
            told.add(name)
