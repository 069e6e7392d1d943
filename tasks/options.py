"""The options of `@job`, checked where a task is declared: a misspelt one would do nothing, and nobody would know."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from celery_jobs.records.spelling import nearest

OURS: Final = frozenset(
    {"name", "queue", "priority", "category", "retry_on_worker_lost", "max_attempts", "on_cancel", "bind", "base"}
)
_RETRIES: Final = (
    *("autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter"),
)
_MESSAGES: Final = ("routing_key", "exchange", "exchange_type", "delivery_mode", "compression")
_DECORATOR: Final = ("shared", "filter", "pydantic", "pydantic_strict", "pydantic_context", "pydantic_dump_kwargs")
_CALLED: Final = ("before_start", "after_return", "on_success", "on_failure", "on_retry", "on_replace", "shadow_name")
_TASK: Final = (
    *("Request", "Strategy", "backend", "typing", "serializer", "expires", "throws", "trail", "resultrepr_maxsize"),
    *("acks_late", "acks_on_failure", "acks_on_failure_or_timeout", "acks_on_timeout", "reject_on_worker_lost"),
    *("max_retries", "default_retry_delay", "rate_limit", "time_limit", "soft_time_limit"),
    *("ignore_result", "store_errors_even_if_ignored", "store_eager_result", "track_started", "send_events"),
)
CELERYS: Final = frozenset({*_TASK, *_RETRIES, *_MESSAGES, *_DECORATOR, *_CALLED})


def check(name: str, options: Mapping[str, Any], own: Collection[str] = ()) -> None:
    """TypeError for an option that nobody knows, with the near one; ValueError for one out of its range.

    `own`: the attributes of a task class of the caller's, which may be set too.
    """
    known = OURS | CELERYS | {each for each in own if not each.startswith("_")}
    for option in options:
        if option not in known:
            raise TypeError(f"@job of {name}: there is no option {option!r}; did you mean {_near(option, known)!r}?")
    for option, (fits, range_) in _RANGES.items():
        value = options.get(option)
        if value is not None and not fits(value):
            raise ValueError(f"@job of {name}: {option} must be {range_}, not {value!r}")
    soft, hard = options.get("soft_time_limit"), options.get("time_limit")
    if soft is not None and hard is not None and soft >= hard:
        raise ValueError(
            f"@job of {name}: soft_time_limit ({soft:g} s) must be less than time_limit ({hard:g} s), "
            "which leaves the code the time between them to clean up in"
        )


def _near(option: str, known: Iterable[str]) -> str:
    words = sorted(known)
    inside = [word for word in words if option.lower() in word]  # `retries` for `max_retries`
    return nearest(option, inside or words)


Fits = Callable[[Any], bool]


def _whole(least: int, most: float = math.inf) -> Fits:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(fits: Fits) -> Fits:
    return lambda value: isinstance(value, int | float) and math.isfinite(value) and fits(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _exceptions(value: Any) -> bool:
    several = isinstance(value, Sequence | set | frozenset) and not isinstance(value, str)
    return several and all(isinstance(each, type) and issubclass(each, BaseException) for each in value)


_SECONDS: Final = (_number(lambda value: value > 0), "a number of seconds above 0")
_DELAY: Final = (_number(lambda value: value >= 0), "a number of seconds, 0 or more")
_CLASSES: Final = (_exceptions, "a tuple of exception classes")
_FUNCTION: Final = (callable, "a function")
_RANGES: Final[dict[str, tuple[Fits, str]]] = {
    "name": (_text, "a text that is not empty"),
    "queue": (_text, "the name of a queue"),
    "category": (_text, "a text that is not empty"),
    "priority": (_whole(0, 100), "a whole number between 0 and 100"),
    "retry_on_worker_lost": (lambda value: isinstance(value, bool), "True or False"),
    "max_attempts": (_whole(1), "a whole number, 1 or more"),
    "max_retries": (_whole(0), "a whole number, 0 or more, or None for no end"),
    "soft_time_limit": _SECONDS,
    "time_limit": _SECONDS,
    "default_retry_delay": _DELAY,
    "retry_backoff": (_number(lambda value: value >= 0), "True, or a factor, 0 or more"),
    "retry_backoff_max": _DELAY,
    "autoretry_for": _CLASSES,
    "dont_autoretry_for": _CLASSES,
    "throws": _CLASSES,
    "on_cancel": _FUNCTION,
    **dict.fromkeys(_CALLED, _FUNCTION),
}
