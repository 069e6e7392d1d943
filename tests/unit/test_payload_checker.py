"""Checks that may take long are made beside the event loop, and given up when they do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic_core import to_json

from celery_jobs.api.payloads import checker as module
from celery_jobs.api.payloads.check import Fault, SchemaUnusable
from celery_jobs.api.payloads.checker import Checker
from celery_jobs.api.payloads.effort import is_light, is_named_soon
from celery_jobs.records.errors import ChecksBusy
from celery_jobs.records.remote.registering import canonical

LIST = {"properties": {"l": {"items": {"type": "integer"}}}}
LONG = {"l": list(range(200_000))}
# a small schema that costs minutes with a large payload
SLOW = canonical({"properties": {"l": {"allOf": [{"contains": {"const": -n}, "minContains": 0} for n in range(1000)]}}})


@pytest.fixture
async def checker() -> AsyncGenerator[Checker]:
    made = Checker()
    yield made
    made.close()


async def checked(checker: Checker, schema: Any, payload: dict[str, Any]) -> list[Fault]:
    text = schema if isinstance(schema, str) else canonical(schema)
    return await checker.check_payload(text, payload, to_json(payload).decode())


def child(checker: Checker) -> int:
    assert checker._child is not None  # pyright: ignore[reportPrivateUsage]
    return checker._child.pid  # pyright: ignore[reportPrivateUsage]


async def test_what_is_light_needs_no_process(checker: Checker) -> None:
    assert await checked(checker, LIST, {"l": [1]}) == []
    assert [list(place) for place, *_ in await checked(checker, LIST, {"l": [1, "2"]})] == [["l", 1]]
    assert checker._child is None  # pyright: ignore[reportPrivateUsage]


async def test_what_is_large_is_checked_by_one_process_that_stays(checker: Checker) -> None:
    assert await checked(checker, LIST, LONG) == []
    first = child(checker)
    found = await checked(checker, LIST, {"l": ["yes", *LONG["l"], "no"]})
    assert [(list(place), kind) for place, _why, kind in found] == [(["l", 0], "type"), (["l", 200_001], "type")]
    assert '"no"' in found[1][1]
    assert len(await checked(checker, LIST, {"l": ["x"] * 1_000})) == 100
    assert child(checker) == first


def doubled(levels: int, reference: str = "#/$defs/a{}") -> dict[str, Any]:
    """Each level refers twice to the next."""
    parts = {f"a{n}": {"$anchor": f"a{n}", "allOf": [{"$ref": reference.format(n + 1)}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**parts, f"a{levels}": {"$anchor": f"a{levels}", "required": ["x"]}}}


@pytest.mark.parametrize("schema", [doubled(40), doubled(40, "#a{}")], ids=["paths", "anchors"])
async def test_a_schema_whose_references_multiply_costs_who_uses_it(checker: Checker, schema: dict[str, Any]) -> None:
    await checker.check_schema(canonical(schema))
    [(place, _message, kind)] = await checked(checker, schema, {"x": 1})
    assert (place, kind) == ((), "too_slow")


async def test_that_a_payload_is_wrong_is_said_even_if_it_takes_too_long_to_say_where(checker: Checker) -> None:
    node = {"properties": {"a": {"anyOf": [{"$ref": "#"}] * 2}, "x": {"type": "integer"}}}
    payload: dict[str, Any] = {"x": "no integer"}
    for _ in range(40):  # some 2 ** 40 ways
        payload = {"a": payload}
    [(place, message, kind)] = await checked(checker, node, payload)
    assert (place, kind) == ((), "schema")
    assert "does not fit" in message
    assert await checked(checker, LIST, LONG) == []


async def test_what_takes_too_long_is_given_up_and_others_go_on_meanwhile(checker: Checker) -> None:
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)

    ticking = asyncio.create_task(tick())
    [(place, message, kind)] = await checked(checker, SLOW, LONG)
    ticking.cancel()
    assert (place, kind) == ((), "too_slow")
    assert "make it smaller" in message
    assert longest < 1.5  # of the event loop, which the check itself would hold up for far longer
    assert await checked(checker, LIST, LONG) == []  # by another process
    began = time.monotonic()
    [(_, _, kind)] = await checked(checker, SLOW, LONG)  # the same is not tried again
    assert kind == "too_slow"
    assert time.monotonic() - began < 1


async def test_a_schema_that_takes_too_long_to_compile_is_refused(checker: Checker) -> None:
    # each of these patterns takes some 20 ms
    patterns = {f"^a{n}\\p{{L}}{{3,60}}$": {} for n in range(2_000)}
    with pytest.raises(SchemaUnusable, match="simpler"):
        await checker.check_schema(canonical({"patternProperties": patterns}))
    await checker.check_schema(canonical({"properties": {f"p{n}": {"type": "string"} for n in range(3_000)}}))


async def test_a_process_that_was_killed_is_replaced(checker: Checker) -> None:
    assert await checked(checker, LIST, LONG) == []
    first = child(checker)
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert await checked(checker, LIST, LONG) == []
    os.kill(child(checker), signal.SIGSTOP)
    late = asyncio.create_task(checked(checker, LIST, LONG))
    await asyncio.sleep(0)
    os.kill(child(checker), signal.SIGKILL)  # while it is asked
    with pytest.raises(ChecksBusy):
        await late
    assert await checked(checker, LIST, LONG) == []


async def test_who_leaves_takes_no_answer_from_the_next(checker: Checker) -> None:
    leaver = asyncio.create_task(checked(checker, SLOW, LONG))
    while checker._child is None:  # noqa: ASYNC110  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert await checked(checker, LIST, LONG) == []


async def test_the_end_of_the_service_waits_for_no_check(checker: Checker) -> None:
    assert await checked(checker, LIST, LONG) == []
    process = checker._child  # pyright: ignore[reportPrivateUsage]
    late = asyncio.create_task(checked(checker, SLOW, LONG))
    await asyncio.sleep(0)
    checker.close()
    assert process is not None
    assert process.poll() is not None
    for refused in (late, checked(checker, LIST, LONG)):
        with pytest.raises(ChecksBusy):
            await refused


async def test_who_waits_too_long_for_a_turn_is_told_to_come_again(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.05)
    async with checker._turn:  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(ChecksBusy):
            await checked(checker, LIST, LONG)


async def test_the_process_ends_with_whoever_started_it(checker: Checker) -> None:
    assert await checked(checker, LIST, LONG) == []
    process = checker._child  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # as the end of this process would
    assert process.wait(10) == 0


NESTED = {"$ref": "#/$defs/Node", "$defs": {"Node": {"properties": {"left": {"$ref": "#/$defs/Node"}}}}}


def test_everyday_payloads_are_light() -> None:
    fields = {f"p{n}": {"type": "number", "minimum": 0} for n in range(30)}
    model = canonical({"properties": fields, "required": ["p0"]})
    assert is_light(model, 4_000)
    assert is_named_soon(model, 100)
    box = {"type": "object", "properties": {"sides": {"items": {"type": "integer"}}}}
    assert is_light(canonical({"properties": {"box": {"$ref": "#/$defs/Box"}}, "$defs": {"Box": box}}), 10_000)


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"multipleOf": 1e-300}},
        {"items": {"enum": list(range(3_000))}},
        {"items": {"required": [f"p{n}" for n in range(2_500)]}},
        {"items": {"dependentRequired": {str(n): [] for n in range(1_800)}}},
        {"properties": {"a": {"pattern": "^(?:(?:[a-y]{0,200}){0,40})x{7}$"}}},
        {"properties": {"const": {"$ref": "#/$defs/a0"}}, **doubled(26)},
        doubled(26),
        doubled(26, "#a{}"),
        {"$ref": "#/$defs/l/anyOf/0", "$defs": {"l": {"anyOf": [{}]}}},
        {"$schema": "http://json-schema.org/draft-04/schema#"},
        NESTED,
        {"$ref": 1},
        {"properties": []},
        {"allOf": 1},
        {"items": {"items": [1]}},
    ],
    ids=lambda schema: canonical(schema)[:40],
)
def test_what_may_take_long_is_not_light(schema: dict[str, Any]) -> None:
    assert not is_light(canonical(schema), 300)


async def test_what_takes_too_much_memory_is_given_up(checker: Checker) -> None:
    schema = {"properties": {"l": {"items": {"allOf": [{"required": [f"k{n}"]} for n in range(100)]}}}}
    [(_place, message, _kind)] = await checked(checker, schema, {"l": [{}] * 340_000})
    assert "could not be named" in message
    assert await checked(checker, LIST, LONG) == []
