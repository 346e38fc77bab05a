"""A retry policy as data: one kind of policy with its first wait, and its options.

    { constant = "30s", attempts = 3 }
    { linear = "10s", increment = "10s", limit = "5m", attempts = 5 }
    { exponential = "1s", factor = 2, limit = "1h", attempts = 5, jitter = 0.2 }

They are those of `evertick.policy`, with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evertick.config.problem import nearest
from evertick.errors import EvertickError
from evertick.policy import Constant, Exponential, Linear, RetryPolicy

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
_OPTIONAL = {"constant": ("jitter",), "linear": ("jitter",), "exponential": _OPTIONS["exponential"]}


def read_retry(value: Any, refuse: Callable[..., None]) -> RetryPolicy | None:
    """The policy; None where it is wrong, which `refuse` is told: what, and perhaps of which key."""
    if not isinstance(value, dict):
        refuse(f'{value!r:.60} is no policy; write it like {{ exponential = "1s", attempts = 5 }}')
        return None
    kinds = [name for name in _POLICIES if name in value]
    if len(kinds) != 1:
        example = '{ constant = "30s", attempts = 3 }'
        refuse(f"write exactly one of {', '.join(_POLICIES)} with its first wait, like {example}")
        return None
    return _made(kinds[0], value, refuse)


def _made(kind: str, value: dict[str, Any], refuse: Callable[..., None]) -> RetryPolicy | None:
    unknown = [name for name in value if name not in (kind, *_OPTIONS[kind])]
    for name in unknown:
        refuse(f"no such key; {nearest(name, _OPTIONS[kind], what=f'beside {kind} there are')}", name)
    missing = [name for name in _OPTIONS[kind] if name not in value and name not in _OPTIONAL[kind]]
    if missing:
        refuse(f"{kind} needs {', '.join(missing)}, too")
    if unknown or missing:
        return None
    policy, first = _POLICIES[kind]
    options = {first if name == kind else name: each for name, each in value.items()}
    try:
        return policy(**options)
    except EvertickError as wrong:
        name, _, said = str(wrong).partition(": ")
        refuse(said, kind if name == first else name)
        return None
