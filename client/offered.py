"""Classes that a module offers without a server at hand, for `python -m celery_jobs.client`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from pydantic import BaseModel

from celery_jobs.client.offers import offer_of

M = TypeVar("M", bound=BaseModel)

OFFERED: dict[type[BaseModel], str | None] = {}  # and the room, None where the command decides


@overload
def register(task_class: type[M], *, room: str | None = None) -> type[M]: ...


@overload
def register(task_class: None = None, *, room: str | None = None) -> Callable[[type[M]], type[M]]: ...


def register(task_class: type[M] | None = None, *, room: str | None = None) -> type[M] | Callable[[type[M]], type[M]]:
    """Offer a class to `python -m celery_jobs.client`; as `JobManager.register`, and nothing is sent yet."""

    def offered(cls: type[M]) -> type[M]:
        offer_of(cls, room)  # what cannot be registered fails here, where the class is
        OFFERED[cls] = room
        return cls

    return offered if task_class is None else offered(task_class)
