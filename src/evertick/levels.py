"""TRACE: a level of logging below DEBUG, for every step of every loop.

What is told on it is for whoever works on Evertick itself; nothing is put into words for it unless somebody listens.
"""

from __future__ import annotations

import logging

__all__ = ["TRACE"]

TRACE = 5
logging.addLevelName(TRACE, "TRACE")
