"""Variables of the environment that are called like those of Evertick, and are none.

A misspelt `EVERTICK_DATABSE` would leave a node on another database than was meant, so a name that is like a known one,
or begins like those of a section, is refused. Any other may be somebody's own, and is a warning. Nothing is said of
what a file refers to, what other parts of Evertick read or set, and what Kubernetes tells of its services.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from evertick.config.interpolate import references_in
from evertick.config.ownership import TRUST_VARIABLE
from evertick.config.problem import Problems
from evertick.config.section import SECTIONS, SHORT_VARIABLES, VARIABLE, keys_of, variable_of
from evertick.driver.secret import SECRET_VARIABLE
from evertick.driver.shell.spec import RUN_VARIABLES
from evertick.driver.shell.supervised import MARK
from evertick.scheduler.process import TRACEBACK_VARIABLE
from evertick.text.did_you_mean import alike, nearest

__all__ = ["check_variables"]

_KEYS = tuple(variable_of(f"{section}.{key}") for section, kind in SECTIONS.items() for key, _, _ in keys_of(kind))
# Read by other commands and by the script in `dist/`; or set for the commands of shell jobs, of which one may be ours.
_ELSEWHERE = frozenset((TRACEBACK_VARIABLE, TRUST_VARIABLE, "EVERTICK_DEFAULTS", MARK, *RUN_VARIABLES))
# As Kubernetes calls the variables in which it tells the containers of a namespace of its services.
_SERVICE = re.compile(
    r"(?P<service>\w+?)_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
# So much of what follows the prefix is the same in a name that is misspelt; in one that means something else, less.
_MISSPELT = 0.85


def check_variables(environ: Mapping[str, str], data: Iterable[Any], problems: Problems, warnings: Problems) -> None:
    """`data`: what the files hold, whose `${NAME}` are known by that."""
    unknown = [name for name in environ if name.startswith(VARIABLE) and not _is_known(name, environ)]
    if not unknown:
        return
    referred = {name for each in data for name in references_in(each)}
    for name in unknown:
        if name not in referred:
            _tell(name, problems, warnings)


def _is_known(name: str, environ: Mapping[str, str]) -> bool:
    is_ours = name in _KEYS or name in SHORT_VARIABLES or name in _ELSEWHERE or name.startswith(SECRET_VARIABLE)
    return is_ours or _is_of_service(name, environ)


def _is_of_service(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Kubernetes has set it: for a service called evertick-redis every container gets EVERTICK_REDIS_PORT."""
    found = _SERVICE.fullmatch(name)
    return found is not None and f"{found['service']}_SERVICE_HOST" in environ


def _tell(name: str, problems: Problems, warnings: Problems) -> None:
    for section in SECTIONS:
        beginning = f"{variable_of(section)}_"
        if name.startswith(beginning):
            near = nearest(name, [each for each in _KEYS if each.startswith(beginning)], what="there are")
            problems.add(name, "", f"no key of the configuration has this variable; {near}")
            return
    own = [each.removeprefix(VARIABLE) for each in (*SHORT_VARIABLES, *_KEYS)]
    if (meant := alike(name.removeprefix(VARIABLE), own, _MISSPELT)) is not None:
        problems.add(name, "", f"no key of the configuration has this variable; it is called '{VARIABLE}{meant}'")
        return
    fix = next((f"; is {each} meant?" for each in _ending_alike(name)), "; give it another name, if it is yours")
    warnings.add(name, "", f"no key of the configuration has this variable, and nothing reads it{fix}")


def _ending_alike(name: str) -> Iterator[str]:
    """Those that are called so but for their section: EVERTICK_TZ is meant for node.tz."""
    ending = f"_{name.removeprefix(VARIABLE)}"
    return (each for each in _KEYS if each.endswith(ending))
