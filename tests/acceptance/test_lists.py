"""Lists (contract, section 3): filters, pages that lead to each other, and all of them at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psutil
import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import PREFIX, Jobs, good
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack
from tests.support.tables import fill

NewStack = Callable[..., Stack]


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [each["id"] for each in found]


def walk(jobs: Jobs, **params: Any) -> list[list[dict[str, Any]]]:
    """Every page, by the links alone."""
    answer = good(jobs.client.get(PREFIX, params=params), 200)
    pages = [answer.json()]
    while "next" in answer.links:
        answer = good(jobs.client.get(answer.links["next"]["url"]), 200)
        pages.append(answer.json())
    return pages


@shared(EMBEDDED, PREFORK, SQLITE)
def test_pages_lead_from_the_newest_job_to_the_oldest_while_others_come(stack: Stack) -> None:
    tag = stack.name()
    sent = [stack.jobs.submit("note", params={"tag": tag}) for _ in range(7)]
    answer = good(stack.jobs.client.get(PREFIX, params={"limit": 3, "tag": tag}), 200)
    seen = answer.json()
    while "next" in answer.links:
        stack.jobs.submit("note", params={"tag": tag})  # no page shows it, and none shows a job twice for it
        answer = good(stack.jobs.client.get(answer.links["next"]["url"]), 200)
        seen += answer.json()
    assert ids(seen) == sent[::-1]


@shared(EMBEDDED, PREFORK)
def test_a_page_keeps_its_filters_and_the_last_one_leads_nowhere(stack: Stack) -> None:
    tag = f"{stack.name()} & more, é"
    sent = [stack.jobs.submit("note", params=[("tag", tag), ("tag", "x")]) for _ in range(4)]
    stack.jobs.submit("note", params={"tag": tag})
    after = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    pages = walk(stack.jobs, limit=2, tag=[tag, "x"], task="sample.note", queue="jobs", submitted_after=after)
    assert [ids(page) for page in pages] == [sent[:1:-1], sent[1::-1]]
    assert "link" not in stack.jobs.client.get(PREFIX, params={"limit": 1000, "tag": tag}).headers


@shared(EMBEDDED, PREFORK, SQLITE)
def test_each_filter_shows_what_fits_and_nothing_else(stack: Stack) -> None:
    tag = stack.name()
    name = stack.name()
    running = stack.jobs.submit("hold_async", name=name, params=[("tag", tag), ("tag", "slow")])
    stack.jobs.wait(running, "running")
    failed = stack.jobs.submit("raising", params={"tag": tag})
    stack.jobs.wait(failed, "failed")
    between = stack.jobs.record(failed)["submitted_at"]
    noted = stack.jobs.submit("note", params={"tag": tag})
    stack.jobs.wait(noted, "completed")

    def listed(**params: Any) -> set[str]:
        return set(ids(stack.jobs.list(**{"tag": tag, **params})))

    assert listed() == {running, failed, noted}
    assert listed(status_filter="running") == {running}
    assert listed(status_filter="failed") == {failed}
    assert listed(status_filter="canceled") == set()
    assert listed(task="sample.note") == {noted}
    assert listed(task="sample.not") == set()
    assert listed(queue="jobs") == {running, failed, noted}
    assert listed(queue="other") == set()
    assert listed(tag=[tag, "slow"]) == {running}
    assert listed(tag=[tag, "slo"]) == set()
    assert listed(submitted_after=between) == {noted}
    assert listed(submitted_before=between) == {running}
    assert listed(status_filter="completed", task="sample.note", queue="jobs", submitted_after=between) == {noted}
    # the plus of an offset, sent as it is: a space to every parser of queries
    raw = stack.jobs.client.get(f"{PREFIX}?tag={tag}&submitted_after={between.replace('Z', '+00:00')}")
    assert ids(good(raw, 200).json()) == [noted]


@shared(EMBEDDED)
@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=-1", "limit=", "limit=x", "limit=1.5", "limit=1e2"),
        *("cursor=", "cursor=x", "cursor=YmVsb3c6MA", "cursor=" + "A" * 200),
        *("status_filter=", "status_filter=done", "status_filter=RUNNING", "task=", "queue=", "tag=", "tag=a&tag="),
        *("submitted_after=", "submitted_after=yesterday", "submitted_before=2026-01-01T00:00:00", "page=2", "Limit=5"),
        *("limit=1&limit=2", "status_filter=failed&status_filter=running"),
    ],
)
def test_a_filter_that_is_wrong_is_refused_and_named(stack: Stack, query: str) -> None:
    answer = stack.jobs.client.get(f"{PREFIX}?{query}")
    assert answer.status_code == 422
    named = query.partition("=")[0]
    assert any(named in map(str, fault["loc"]) for fault in answer.json()["errors"])


@shared(EMBEDDED, PREFORK)
def test_the_list_is_what_its_schema_says(stack: Stack) -> None:
    import jsonschema

    stack.jobs.wait(stack.jobs.submit("raising"), "failed")
    stack.jobs.wait(stack.jobs.submit("typed", count=1), "completed")
    schema = good(stack.jobs.client.get(f"{PREFIX}/$schema"), 200).json()
    assert schema["type"] == "array"
    listed = stack.jobs.list()
    jsonschema.validate(listed, schema)
    item = schema["$defs"]["ListedJob"]
    assert set(item["properties"]) == set(listed[0]) == set(item["required"])
    assert "result" not in listed[0]
    assert "error_traceback" not in listed[0]


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED,))
def test_the_whole_list_is_complete_in_constant_memory_and_holds_up_nobody(kind: Kind, new_stack: NewStack) -> None:
    stack = new_stack(kind).start()
    many = 60_000
    fill(stack.database_url, many)
    process = psutil.Process(stack.process.pid)
    stack.jobs.list(limit=1000)  # what the first list takes once is not this one's
    before = process.memory_info().rss
    seen, most, size = set[str](), 0, 0
    with (
        stack.jobs.client.stream("GET", PREFIX, timeout=60) as answer,
        httpx.Client(base_url=str(stack.jobs.client.base_url), timeout=5) as other,
    ):
        decoder, text, looked = json.JSONDecoder(), "", 0
        for chunk in answer.iter_text():
            size += len(chunk)
            text += chunk
            while (start := text.find("{")) >= 0:
                try:
                    record, end = decoder.raw_decode(text, start)
                except json.JSONDecodeError:
                    break
                seen.add(record["id"])
                text = text[end:]
            if len(seen) // 10_000 > looked:
                looked = len(seen) // 10_000
                most = max(most, process.memory_info().rss)
                good(other.get("/livez"), 200)
                good(other.get(PREFIX, params={"limit": 10}), 200)
    assert len(seen) == many
    assert looked >= 5
    assert size > 20e6
    # four readers with a cache of 16 MB each on SQLite; all the records at once would take three times as much
    assert most - before < 70e6
