"""The records of a scheduler that is not ours, over HTTP: one, many in pages, results, cancels and deletions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from ulid import ULID

from celery_jobs.api import JobRecord, JobStatus
from tests.support.plugged import ByHand, Film, plugged, problem_of, serving

UNKNOWN = "01JQRS7X6ZJ8T3V5W7Y9A1B3C5"


@pytest.fixture
def scheduler() -> ByHand:
    return ByHand()


@pytest.fixture
def app(scheduler: ByHand) -> FastAPI:
    return plugged(scheduler).with_jobs().build()


# --- looking


async def test_pages_stay_true_while_jobs_come_and_go(scheduler: ByHand, app: FastAPI):
    moment = datetime.now(UTC) - timedelta(hours=1)
    ids = [scheduler.put(submitted_at=moment + timedelta(seconds=number // 3)) for number in range(9)]  # coarse clock
    order = [str(each) for each in sorted(ids, key=lambda each: (scheduler.records[each].submitted_at, each))][::-1]
    async with serving(app) as client:
        assert [each["id"] for each in (await client.get("/api/v1/jobs")).json()] == order
        seen: list[str] = []
        path: str | None = "/api/v1/jobs?limit=2"
        while path is not None:
            page = await client.get(path)
            seen += [each["id"] for each in page.json()]
            path = page.links["next"]["url"] if "next" in page.links else None
            scheduler.put()
            scheduler.records.pop(ULID.from_str(seen[0]), None)
        assert seen == order
        for cursor in ("YmVsb3c6MA", "x", "9" * 80):
            assert problem_of(await client.get("/api/v1/jobs", params={"cursor": cursor}), 422) == "validation-failed"


async def test_a_list_is_filtered_as_ours(scheduler: ByHand, app: FastAPI):
    now = datetime.now(UTC)
    red = scheduler.put("completed", tags=["red", "big"], task="paint", submitted_at=now - timedelta(hours=2))
    blue = scheduler.put("running", tags=["blue"], task="paint", queue="slow", error_traceback="Traceback …")
    async with serving(app) as client:
        for query, expected in {
            "status_filter=running": [blue],
            "task=paint": [blue, red],
            "queue=slow": [blue],
            "tag=red&tag=big": [red],
            "tag=red&tag=blue": [],
            f"submitted_after={(now - timedelta(hours=1)).isoformat().replace('+', '%2B')}": [blue],
            f"submitted_before={(now - timedelta(hours=1)).isoformat().replace('+', '%2B')}": [red],
        }.items():
            listed = (await client.get(f"/api/v1/jobs?{query}")).json()
            assert [each["id"] for each in listed] == [str(each) for each in expected], query
            assert all("error_traceback" not in each for each in listed)
        assert problem_of(await client.get("/api/v1/jobs?colour=red"), 422) == "validation-failed"


async def test_a_record_of_its_own_class_is_shown_with_all_its_fields(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put("completed", Film, reel="last", frames={"a": 1})
    async with serving(app) as client:
        one, listed = (await client.get(f"/api/v1/jobs/{job_id}")).json(), (await client.get("/api/v1/jobs")).json()
        for shown in (one, *listed):
            assert (shown["reel"], shown["frames"]) == ("last", {"a": 1})


async def test_the_hook_that_makes_records_tells_the_document_of_their_fields():
    class WithHook(ByHand):
        def _make_record(self, job_id: ULID, submitted_at: datetime) -> JobRecord:
            return Film(id=job_id, status=JobStatus.pending, submitted_at=submitted_at)

    app = plugged(WithHook()).with_jobs().build()
    for _ in range(2):
        assert "reel" in app.openapi()["components"]["schemas"]["JobRecord"]["properties"]
        app.openapi_schema = None
    async with serving(app) as client:
        schema = (await client.get("/api/v1/jobs/$schema")).json()
        assert "reel" in schema["$defs"]["ListedJob"]["properties"]


async def test_times_without_an_offset_are_utc(scheduler: ByHand, app: FastAPI):
    naive = datetime(2026, 11, 30, 12)  # noqa: DTZ001
    job_id = scheduler.put(submitted_at=naive)
    async with serving(app) as client:
        assert (await client.get(f"/api/v1/jobs/{job_id}")).json()["submitted_at"] == "2026-11-30T12:00:00Z"
        found = await client.get("/api/v1/jobs?submitted_before=2026-11-30T13:00:00Z")
        assert [each["submitted_at"] for each in found.json()] == ["2026-11-30T12:00:00Z"]


async def test_a_result_is_what_the_scheduler_gives_as_json(scheduler: ByHand, app: FastAPI):
    done, odd, failed, lost = (scheduler.put(status) for status in ("completed", "completed", "failed", "completed"))
    scheduler.results = {done: {"when": datetime(2026, 1, 1, tzinfo=UTC), 1: float("nan")}, odd: {1, 2}, failed: 3}
    async with serving(app) as client:

        async def result_of(job_id: ULID) -> tuple[Any, Any]:
            body = (await client.get(f"/api/v1/jobs/{job_id}/$result")).json()
            return body["result"], body["error"]

        assert await result_of(done) == ({"when": "2026-01-01T00:00:00Z", "1": None}, None)
        assert (await client.get(f"/api/v1/compute/{done}/result")).json()["result"] is not None
        value, error = await result_of(odd)
        assert value is None
        assert error.startswith("ResultNotStorable: set cannot be written")
        assert await result_of(failed) == (None, None)
        assert await result_of(lost) == (None, None), "a RuntimeError of get_result"
        scheduler.fails["get_result"] = NotImplementedError()
        assert problem_of(await client.get(f"/api/v1/jobs/{done}/$result"), 501) == "not-supported"


# --- canceling and deleting


async def test_a_cancel_answers_with_the_record_as_it_now_is(scheduler: ByHand, app: FastAPI):
    async with serving(app) as client:
        for before, after in {"pending": "canceled", "running": "canceling", "canceled": "canceled"}.items():
            job_id = scheduler.put(before)
            for _ in range(2):
                response = await client.post(f"/api/v1/jobs/{job_id}/$cancel")
                assert (response.status_code, response.json()["status"]) == (202, after)
        for status in ("completed", "failed"):
            response = await client.post(f"/api/v1/jobs/{scheduler.put(status)}/$cancel")
            assert problem_of(response, 409) == "conflict"
        by_force = await client.post(f"/api/v1/jobs/{scheduler.put()}/$cancel?force=true")
        assert problem_of(by_force, 501) == "not-supported"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/$result"),
        ("GET", "/$stream"),
        ("POST", "/$cancel"),
        ("DELETE", ""),
    ],
)
async def test_an_unknown_job_is_404_and_what_else_goes_wrong_is_500(
    scheduler: ByHand, app: FastAPI, method: str, path: str
):
    async with serving(app) as client:
        assert problem_of(await client.request(method, f"/api/v1/jobs/{UNKNOWN}{path}"), 404) == "not-found"
        assert problem_of(await client.request(method, f"/api/v1/jobs/no-id{path}"), 400) == "invalid-ulid"
        for asked in ("get_record", "cancel", "delete"):
            scheduler.fails[asked] = OSError("secret")
        response = await client.request(method, f"/api/v1/jobs/{scheduler.put()}{path}")
        assert problem_of(response, 500) == "internal"
        assert "secret" not in response.text
