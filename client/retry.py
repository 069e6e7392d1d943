"""When to try again: pauses that grow and differ between clients, and how long a call is repeated at all.

Only what is safe to repeat comes here: reads, claims, heartbeats, registrations, submits with a key, and reports, which
look at the task before they repeat themselves.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from celery_jobs.client.errors import ClientError

T = TypeVar("T")
log = logging.getLogger("celery_jobs.client")

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 5.0
LONGEST_ASKED_PAUSE_SECONDS: Final = 30.0  # of Retry-After

CALL_PATIENCE_SECONDS: Final = 10.0  # register, submit, and other calls that a program waits for
REPORT_PATIENCE_SECONDS: Final = 600.0  # what a task came to is worth waiting for
HURRIED_PATIENCE_SECONDS: Final = 5.0  # any of them once the program has been told to end

_LOOK_SECONDS: Final = 0.25


class Backoff:
    """Pauses that double up to a longest one, each cut by chance so that many clients do not come back at once."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._failures = 0

    def pause_after(self, error: ClientError) -> float:
        """Seconds to wait after one more failure; no less than the server asks for."""
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 30))
        self._failures += 1
        asked = min(error.retry_after_seconds or 0.0, LONGEST_ASKED_PAUSE_SECONDS)
        return max(longest * (0.5 + self._chance() / 2), asked)

    @property
    def failing(self) -> bool:
        """True after a failure."""
        return self._failures > 0

    def reset(self) -> None:
        """Something worked."""
        self._failures = 0


class Hurry:
    """Whether the program was told to end; then nothing is repeated for long. Safe to set in a signal handler."""

    def __init__(self) -> None:
        self.since: float | None = None

    def begin(self) -> None:
        """From now on, if not before."""
        if self.since is None:
            self.since = time.monotonic()

    def end(self) -> None:
        """The next one has time again."""
        self.since = None


class Patience:
    """The time that one call has, with all its repetitions."""

    def __init__(self, seconds: float, hurry: Hurry) -> None:
        self._begun = time.monotonic()
        self._seconds = seconds
        self._hurry = hurry

    @property
    def left_seconds(self) -> float:
        """Until the call gives up; less once there is a hurry."""
        end = self._begun + self._seconds
        if self._hurry.since is not None:
            end = min(end, max(self._begun, self._hurry.since) + HURRIED_PATIENCE_SECONDS)
        return end - time.monotonic()

    def pause(self, seconds: float) -> bool:
        """Sleep, in short bits since the time may be cut meanwhile; False if there is no time left for another try."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.left_seconds <= left:
                return False
            time.sleep(min(left, _LOOK_SECONDS))
        return True


def patiently(call: Callable[[Patience], T], seconds: float, hurry: Hurry) -> T:
    """What the call gives, tried again while the server is away and time is left; then its error."""
    patience, backoff = Patience(seconds, hurry), Backoff()
    while True:
        try:
            return call(patience)
        except ClientError as error:
            if not error.transient or not wait_for_another_try(error, backoff, patience):
                raise


def wait_for_another_try(error: ClientError, backoff: Backoff, patience: Patience) -> bool:
    """Pause after a failure; False when the time is over."""
    if not backoff.failing:
        log.warning("the job service does not answer, trying again: %s", error)
    return patience.pause(backoff.pause_after(error))
