"""What the jobs of a configuration do: all that is no part of a schedule, and so not in the ledger.

By this a daemon can be asked whether it does the same as a file says: without keeping commands, which may hold what
others must not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from evertick.config.configuration import Configuration
from evertick.config.job import TASK_KEYS, Job

__all__ = ["changed_doing", "doing_of"]

_DIGEST_BYTES = 6

Doing = Mapping[str, Mapping[str, str]]


def doing_of(configuration: Configuration) -> dict[str, dict[str, str]]:
    """By job, its keys that say what to do, each with a digest of what the file has there."""
    defaults = {name: each for name, each in configuration.defaults.shown.items() if name in TASK_KEYS}
    return {job.name: _digests(job, defaults) for job in configuration.jobs}


def changed_doing(old: Doing, new: Doing) -> dict[str, list[str]]:
    """Which keys of which jobs differ, of those that are in both."""
    found = {name: _differing(old[name], new[name]) for name in sorted(old.keys() & new.keys())}
    return {name: keys for name, keys in found.items() if keys}


def _digests(job: Job, defaults: Mapping[str, Any]) -> dict[str, str]:
    if job.spec is None:
        return {}
    own = {name: each for name, each in job.shown.items() if name == job.spec.driver or name in TASK_KEYS}
    return {name: _digest(each) for name, each in (dict(defaults) | own).items()}


def _digest(value: Any) -> str:
    return blake2b(msgspec.json.encode(value, order="sorted"), digest_size=_DIGEST_BYTES).hexdigest()


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
