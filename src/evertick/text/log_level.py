"""TRACE: a level of logging below DEBUG, for every step of every loop and every batch that it asks of the store.

For whoever wants to see where the time of a node goes; nothing is put into words for it unless somebody listens.
"""

from __future__ import annotations

import logging

__all__ = ["TRACE"]

TRACE = 5
logging.addLevelName(TRACE, "TRACE")
