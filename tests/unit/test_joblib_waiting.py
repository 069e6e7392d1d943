"""The waiting room: who waits is called by notification, and one look serves all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from celery_jobs.api.joblib import waiting
from celery_jobs.api.joblib.waiting import Waiter, WaitingRoom
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.tasks.contact import Contact

LONG = 60.0


class Looks:
    """What looks find, and how many there were."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.number = 0
        self.looked = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, records: Any, waiters: Sequence[Waiter]) -> Iterable[str]:
        self.number += 1
        self.looked.set()
        if self.error is not None:
            raise self.error
        return self.found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    return Looks()


async def waits(room: WaitingRoom, *keys: str, seconds: float = LONG) -> bool:
    with room.entered(keys) as waiter:
        return await room.wait(waiter, cast("Any", None), time.monotonic() + seconds)


async def all_in(room: WaitingRoom, number: int) -> None:
    async with asyncio.timeout(10):
        while len(room) < number:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_a_call_ends_the_wait_of_all_who_wait_for_the_key(looks: Looks) -> None:
    room = WaitingRoom(looks)
    both = [asyncio.create_task(waits(room, "a")) for _ in range(2)]
    other = asyncio.create_task(waits(room, "b", seconds=0.3))
    await all_in(room, 3)
    room.call("a")
    assert await asyncio.gather(*both) == [True, True]
    assert not await other


async def test_what_is_for_one_goes_to_the_first_and_the_next_to_the_second(looks: Looks) -> None:
    room = WaitingRoom(looks)
    first = asyncio.create_task(waits(room, "a"))
    await all_in(room, 1)
    second = asyncio.create_task(waits(room, "a", "b"))
    await all_in(room, 2)
    room.call_one("a")
    assert await first
    assert not second.done()
    room.call_one("a")
    assert await second


async def test_a_call_for_who_has_just_left_goes_to_the_next(looks: Looks) -> None:
    room = WaitingRoom(looks)
    with room.entered(["a"]):
        second = asyncio.create_task(waits(room, "a"))
        await all_in(room, 2)
        room.call_one("a")  # and who is called leaves without having heard it
    assert await second


async def test_one_look_serves_all_and_another_leads_when_the_leader_leaves(looks: Looks) -> None:
    room = WaitingRoom(looks)
    leader = asyncio.create_task(waits(room, "a"))
    await all_in(room, 1)
    others = [asyncio.create_task(waits(room, str(number))) for number in range(50)]
    await all_in(room, 51)
    async with asyncio.timeout(10):
        await looks.looked.wait()
    leader.cancel()
    looks.looked.clear()
    async with asyncio.timeout(10):
        await looks.looked.wait()
    assert looks.number <= 4, "a look a waiter would be 50"
    looks.found = [str(number) for number in range(50)]
    assert all(await asyncio.gather(*others))


async def test_somebody_leads_although_who_was_to_lead_next_leaves_as_well(looks: Looks) -> None:
    room = WaitingRoom(looks)
    leader = asyncio.create_task(waits(room, "a"))
    await all_in(room, 1)
    with room.entered(["b"]):  # it does something else, and leaves without ever having waited
        last = asyncio.create_task(waits(room, "c"))
        await all_in(room, 3)
        leader.cancel()
        await asyncio.wait({leader})
    looks.found = ["c"]
    async with asyncio.timeout(10):
        assert await last


async def test_an_outage_ends_no_wait(looks: Looks) -> None:
    room = WaitingRoom(looks)
    looks.error = DatabaseUnavailable()
    waiter = asyncio.create_task(waits(room, "a"))
    async with asyncio.timeout(10):
        await looks.looked.wait()
    looks.error, looks.found = None, ["a"]
    assert await waiter


async def test_the_end_of_the_service_ends_every_wait(looks: Looks) -> None:
    room = WaitingRoom(looks)
    before = asyncio.create_task(waits(room, "a"))
    await all_in(room, 1)
    room.close()
    assert await before
    assert await waits(room, "a")


def test_contact_counts_anew_after_a_gap_and_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr("celery_jobs.tasks.contact._seconds_since_boot", lambda: clock)
    contact = Contact(longest_gap_seconds=5)
    assert contact.seconds == 0
    for _ in range(3):
        contact.sign()
        clock += 4
    assert contact.seconds == 8
    clock += 4  # frozen
    assert contact.seconds == 0
    contact.sign()
    assert contact.seconds == 0
    clock += 4
    contact.sign()
    assert contact.seconds == 4
    contact.lost()
    assert contact.seconds == 0
