"""What a record says of an exception: one line and a traceback, valid text whatever the exception does (section 1)."""

from __future__ import annotations

import traceback
from typing import Final

from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.utils.serialization import get_pickleable_exception
from kombu.utils.encoding import safe_repr

from celery_jobs.records.text import ERROR_CHARACTERS, clean, one_line

TRACEBACK_BYTES = 64 * 1024
_LIMITS: Final = (SoftTimeLimitExceeded, TimeLimitExceeded)
_CUT: Final = "\n… cut …\n"

# what the interpreter knows, whatever the class says of itself
_NAME = type.__dict__["__name__"].__get__
_TRACEBACK = BaseException.__dict__["__traceback__"].__get__


def error_line(error: BaseException) -> str:
    """`ExceptionType: message` in one line, at most 4,000 characters; also for an exception whose str() raises."""
    name: str = _NAME(type(error)) or "Exception"
    try:
        # Celery's own str() of a time limit is its name and a tuple
        message = " ".join(map(str, error.args)) if issubclass(type(error), _LIMITS) else f"{error!s}"
    except BaseException as second:
        message = f"<str() raised {_NAME(type(second))}>"
    return one_line(f"{name}: {message}" if message else name)


def traceback_text(error: BaseException) -> str:
    """The formatted traceback, cut in the middle to 64 KiB; its end names the error."""
    try:
        text = clean("".join(traceback.format_exception(error)))
    except BaseException as second:
        text = clean(f"<the traceback cannot be formatted: {_NAME(type(second))}>\n{error_line(error)}\n")
    data = text.encode("utf-8")
    if len(data) <= TRACEBACK_BYTES:
        return text
    half = TRACEBACK_BYTES // 2 - 20
    return data[:half].decode("utf-8", "ignore") + _CUT + data[-half:].decode("utf-8", "ignore")


def error_for_celery(error: BaseException, line: str, text: str) -> BaseException:
    """The error itself, or one that says the same (its `line`) where Celery, its events and its log cannot take it.

    Celery pickles an error, shows it in full wherever it tells of it, and takes some for the end of its own process.
    """
    if issubclass(type(error), SystemExit | KeyboardInterrupt):
        return error
    ordinary = issubclass(type(error), Exception) and not issubclass(type(error), MemoryError)
    if ordinary and len(line) < ERROR_CHARACTERS and _CUT not in text and _survives(error):
        return error
    return RuntimeError(line).with_traceback(_TRACEBACK(error))


def _survives(error: BaseException) -> bool:
    """True when nothing that Celery does with an error makes this one raise another."""
    try:
        safe_repr(get_pickleable_exception(error))
        return bool(type(error).__name__) and isinstance(error, Exception)
    except BaseException:
        return False
