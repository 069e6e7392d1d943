"""Text that any database takes: the one place where odd characters are replaced (contract, section 1)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

# PostgreSQL refuses NUL, and no UTF-8 encoder takes half of a surrogate pair
_ODD = re.compile("[\x00\ud800-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")
_LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

ERROR_CHARACTERS = 4_000


def clean(text: str) -> str:
    """The text with NUL and lone surrogates as U+FFFD."""
    if text.isascii() and "\x00" not in text:
        return text
    return _ODD.sub("\ufffd", text)


def without_lone_surrogates(text: str) -> str:
    """The text with lone surrogates as U+FFFD; a NUL stays, for text that is escaped before it is stored."""
    return _LONE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """One clean line, cut to what a record holds of an error."""
    return _LINE_ENDS.sub(" ", clean(text[: ERROR_CHARACTERS * 2]))[:ERROR_CHARACTERS]


def clean_list(texts: Iterable[str]) -> str:
    """A JSON list of texts, each cleaned before it is escaped: PostgreSQL cannot read an escaped NUL."""
    return json.dumps([clean(text) for text in texts])


class CleanText(TypeDecorator[str]):
    """Text that is cleaned on its way into a statement, be it stored or compared."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Cleaned; a NULL stays one."""
        return None if value is None else clean(value)
