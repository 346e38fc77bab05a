"""An error as it is kept in the ledger."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

from evertick.errors import EvertickError, JobFailed, Retry

__all__ = ["error_text"]

_OUR_FILES = str(Path(__file__).parent.parent) + os.sep
_ERROR_MAX_CHARS = 16_384


def error_text(error: BaseException) -> str:
    """The error with its traceback, cut in the middle when it is long: both ends say the most. It goes into logs, files
    and messages, so it has no half of a letter, as names of files may have."""
    own = _without_our_frames(error)
    if isinstance(error, JobFailed) or (isinstance(error, EvertickError | Retry) and own is None and str(error)):
        text = str(error)  # what we say on purpose, and no line of a job has to do with it
    else:
        text = "".join(traceback.format_exception(type(error), error, own)).rstrip()
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    if len(text) <= _ERROR_MAX_CHARS:
        return text
    half = _ERROR_MAX_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _without_our_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the job's own first frame on: how Evertick came to call it helps nobody."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        own = own.tb_next
    # Frames that are all ours show where a fault of ours is; what we raise on purpose says everything by its message.
    return error.__traceback__ if own is None and not isinstance(error, EvertickError | Retry) else own
