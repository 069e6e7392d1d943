"""What a record says of an exception: one line and a traceback, valid text whatever the exception does (section 1)."""

from __future__ import annotations

import re
import traceback

from celery_jobs.records.text import clean

ERROR_CHARACTERS = 4_000
TRACEBACK_BYTES = 64 * 1024

_LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def error_line(error: BaseException) -> str:
    """`ExceptionType: message` in one line, at most 4,000 characters; also for an exception whose str() raises."""
    try:
        message = str(error)
    except Exception as second:
        message = f"<str() raised {type(second).__name__}>"
    name = type(error).__name__
    return one_line(f"{name}: {message}" if message else name)


def one_line(text: str) -> str:
    """One clean line, cut to what a record holds."""
    return _LINE_ENDS.sub(" ", clean(text[: ERROR_CHARACTERS * 2]))[:ERROR_CHARACTERS]


def traceback_text(error: BaseException) -> str:
    """The formatted traceback, cut in the middle to 64 KiB; its end names the error."""
    try:
        text = clean("".join(traceback.format_exception(error)))
    except Exception as second:
        text = f"<the traceback cannot be formatted: {type(second).__name__}>"
    data = text.encode("utf-8")
    if len(data) <= TRACEBACK_BYTES:
        return text
    half = TRACEBACK_BYTES // 2 - 20
    return data[:half].decode("utf-8", "ignore") + "\n… cut …\n" + data[-half:].decode("utf-8", "ignore")
