"""Names of rooms and jobs: `<room>:<category>:<name>`; `@global` is for all rooms (contract, section 8)."""

from __future__ import annotations

from dataclasses import dataclass

from celery_jobs.records.errors import InvalidRoomId, RemoteJobNotFound
from celery_jobs.records.text import clean

GLOBAL = "@global"
LONGEST = 255
_NOT_IN_ROOMS = frozenset("@:/")
NOT_IN_NAMES = frozenset(":/")


def room(text: str) -> str:
    """The room's id; InvalidRoomId for what is none."""
    if text != GLOBAL and (_odd(text) or _NOT_IN_ROOMS & set(text)):
        raise InvalidRoomId(text)
    return text


def is_name(text: str) -> bool:
    """Whether a job may be called so."""
    return not (_odd(text) or NOT_IN_NAMES & set(text))


def _odd(text: str) -> bool:
    # what the database would store as something else could not be found again
    return not text or len(text) > LONGEST or clean(text) != text


@dataclass(frozen=True, slots=True)
class FullName:
    """The full name of a job, in parts."""

    room_id: str
    category: str
    name: str

    def __str__(self) -> str:
        return f"{self.room_id}:{self.category}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> FullName:
        """The parts of a full name; RemoteJobNotFound for what is none."""
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise RemoteJobNotFound(text)
        return cls(*parts)

    def visible_in(self, room_id: str) -> bool:
        """Whether a room shows the job: its own and the global ones."""
        return self.room_id in (room_id, GLOBAL)
