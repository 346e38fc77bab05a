"""The text of an error, as the ledger stores it."""

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
    """The error with its traceback, cut in the middle if it is long. Surrogates, as in names of files, are replaced:
    logs and messages cannot hold them."""
    own = _without_our_frames(error)
    if isinstance(error, JobFailed) or (isinstance(error, EvertickError | Retry) and own is None and str(error)):
        text = str(error)  # a full sentence, and no frame is the job's
    else:
        text = "".join(traceback.format_exception(type(error), error, own)).rstrip()
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    if len(text) <= _ERROR_MAX_CHARS:
        return text
    half = _ERROR_MAX_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _without_our_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the job's first frame on, without the frames of Evertick that call it."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        own = own.tb_next
    # If all frames are Evertick's, they locate a bug, unless the error was raised on purpose.
    return error.__traceback__ if own is None and not isinstance(error, EvertickError | Retry) else own
