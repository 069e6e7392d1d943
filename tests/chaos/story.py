"""One job of a storm: what its client means to do with it, and what the client was told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

TERMINAL = frozenset({"completed", "failed", "canceled"})
TASKS = ("nap", "nap", "doze", "fail", "safe", "again")


@dataclass(frozen=True)
class Plan:
    """What a client does; `after` in seconds from the answer to its submit."""

    number: int
    task: str
    seconds: float
    then: Literal["nothing", "cancel", "delete"]
    after: float
    follows: bool

    @property
    def key(self) -> str:
        return f"key-{self.number}"

    @property
    def runs(self) -> int:
        """How often the code may start."""
        return {"again": 2, "safe": 3}.get(self.task, 1)


def plan(seed: int, number: int) -> Plan:
    """The same for every subject."""
    dice = random.Random(seed * 1_000_003 + number)
    then = dice.choices(("nothing", "cancel", "delete"), (70, 20, 10))[0]
    return Plan(
        number,
        dice.choice(TASKS),
        round(dice.uniform(0.02, 0.8), 3),
        then,  # pyright: ignore[reportArgumentType]
        dice.uniform(0.0, 1.2),
        dice.random() < 0.5,
    )


@dataclass
class Told:
    """One sight of a status."""

    at: float
    status: str
    finished_at: str | None = None
    event_id: str | None = None

    def agrees(self, other: Told) -> bool:
        """The same state, as far as both say."""
        return self.status == other.status and (
            None in (self.finished_at, other.finished_at) or self.finished_at == other.finished_at
        )


@dataclass
class Story:
    """All that the client of one job saw."""

    plan: Plan
    asked_at: float
    ids: set[str] = field(default_factory=set)
    canceled_at: float | None = None  # when a cancel was first asked for
    cancel_told: Told | None = None
    delete_asked: bool = False
    deleted: bool = False
    events: list[Told] = field(default_factory=list)
    stream: Literal["none", "open", "ended", "gone"] = "none"
    silences: int = 0
    ends: list[Told] = field(default_factory=list)  # terminal states that were seen, each once
    final: dict[str, Any] | None = None  # the record after the storm; None is "not found"

    @property
    def id(self) -> str | None:
        return next(iter(self.ids), None)

    def see(self, record: dict[str, Any], at: float) -> None:
        """Keeps every terminal state that differs from those before."""
        told = Told(at, record["status"], record.get("finished_at"))
        if told.status in TERMINAL and not any(told.agrees(end) for end in self.ends):
            self.ends.append(told)
