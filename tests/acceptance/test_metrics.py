"""The metrics of one process (contract, sections 3 and 9): true, and within a second, whatever is down."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import TERMINAL, Jobs, good
from tests.support.metrics import CANCELED, RAN, SUBMITTED, WAITED, Scrape, busy, run, scrape_of
from tests.support.postgres import PostgresServer
from tests.support.sse import open_stream
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack, migrate
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

FROM_SQL_WITHIN_SECONDS = 1.0 + 1.5


def listed(jobs: Jobs) -> Counter[tuple[str, str]]:
    return Counter((record["queue"], record["status"]) for record in jobs.list())


def gauged(found: Scrape) -> Counter[tuple[str, str]]:
    return Counter({(each.labels["queue"], each.labels["status"]): int(each.value) for each in found.of("jobs")})


# --- one process


@own(EMBEDDED)
def test_everything_that_happens_in_one_process_is_counted(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    (held, _), names = busy(stack, 2)
    waiting = stack.jobs.submit("note")
    stack.jobs.cancel(waiting)
    stack.jobs.cancel(waiting)  # again, which is no second cancel
    stack.jobs.delete(stack.jobs.submit("note"))
    stack.jobs.cancel(held)
    stack.journal.release(*names)
    stack.jobs.wait(held, "canceled")
    stack.jobs.wait_idle()
    coroutine = stack.jobs.submit("hold_async", name=stack.name())
    stack.journal.wait_start(coroutine)
    stack.jobs.cancel(coroutine)
    stack.jobs.wait(coroutine, "canceled")
    stack.jobs.wait(stack.jobs.submit("raising"), "failed")
    stack.jobs.wait(stack.jobs.submit("retrying", name="r", countdown=3.0), "completed")
    key = {"Idempotency-Key": "once"}
    assert stack.jobs.submit("noop", headers=key) == stack.jobs.submit("noop", headers=key)
    stack.jobs.wait_idle()
    found = scrape_of(stack)
    ran = {
        ("sample.hold", "canceled"): 1,
        ("sample.hold", "completed"): 1,
        ("sample.hold_async", "canceled"): 1,
        ("sample.raising", "failed"): 1,
        ("sample.retrying", "retried"): 1,
        ("sample.retrying", "completed"): 1,
        ("sample.noop", "completed"): 1,
    }
    assert {(each.labels["task"], each.labels["status"]): each.value for each in found.of(RAN)} == ran
    canceled = {each.labels["mode"]: each.value for each in found.of(CANCELED)}
    assert canceled == {"at_once": 2, "wait": 1, "interrupt": 1}
    assert found.sum(SUBMITTED, queue="jobs") == 8
    assert found.sum(SUBMITTED, task="sample.noop") == 1  # a replay is no submit
    assert found.sum(WAITED, queue="jobs") == sum(ran.values())
    assert found.sum("job_queue_wait_seconds_sum") < 3.0  # the countdown of a retry is no wait
    assert found.sum("workers") == found.sum("database_up") == 1
    assert not [each.name for each in found.samples if each.name.endswith("_created")]


@own(EMBEDDED)
def test_a_duration_is_that_of_the_record_and_lies_between_the_buckets(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind).start()
    run(stack, "nap", 1, seconds=0.6)
    found = scrape_of(stack)
    assert 0.6 <= found.sum("job_duration_seconds_sum", task="sample.nap") < 5
    buckets = {each.labels["le"]: each.value for each in found.of("job_duration_seconds_bucket", task="sample.nap")}
    assert {"0.005", "3600.0", "+Inf"} <= buckets.keys()
    assert (buckets["0.5"], buckets["5.0"], buckets["+Inf"]) == (0, 1, 1)


@own(EMBEDDED, PREFORK)
def test_the_gauge_of_jobs_is_what_the_list_says(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    run(stack, "note", 3)
    stack.jobs.wait(stack.jobs.submit("raising"), "failed")
    other = stack.jobs.submit("elsewhere", name=stack.name())
    stack.journal.wait_start(other)
    (held,), _ = busy(stack, 1)
    waiting = [stack.jobs.submit("hold", name=stack.name()) for _ in range(3)]
    stack.jobs.cancel(held)
    stack.jobs.cancel(waiting[0])
    stack.jobs.delete(waiting[1])
    expected = {("jobs", "completed"): 3, ("jobs", "failed"): 1, ("jobs", "canceled"): 1, ("jobs", "canceling"): 1}
    expected |= {("jobs", "pending"): 1, ("other", "running"): 1}
    assert listed(stack.jobs) == expected
    wait_until(lambda: +gauged(scrape_of(stack)) == expected, "the gauge says what the list says")
    zero = scrape_of(stack).of("jobs", queue="other", status="canceling")
    assert [each.value for each in zero] == [0]  # what an autoscaler asks for is there


@own(EMBEDDED)
def test_open_streams_are_counted_while_they_are_open(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind).start()
    (job,), names = busy(stack, 1)
    assert scrape_of(stack).sum("sse_streams") == 0
    with stack.jobs.stream(job) as first, stack.jobs.stream(job) as second:
        assert [first.next().status, second.next().status] == ["running", "running"]
        assert scrape_of(stack).sum("sse_streams") == 2
        second.response.close()
        wait_until(lambda: scrape_of(stack).sum("sse_streams") == 1, "a client that left is no open stream")
        with ThreadPoolExecutor(1) as threads:  # who waits has no stream
            waiting = threads.submit(stack.jobs.client.get, f"/api/v1/jobs/{job}", headers={"Prefer": "wait=1"})
            stays(lambda: scrape_of(stack).sum("sse_streams") == 1, "one stream is open", 0.5)
            assert waiting.result(timeout=10).headers["preference-applied"] == "wait"
        with open_stream(stack.jobs.client, "/api/v1/jobs/$stream"):
            wait_until(lambda: scrape_of(stack).sum("sse_streams") == 2, "a stream of all jobs counts too")
        stack.journal.release(*names)
        first.rest()
    wait_until(lambda: scrape_of(stack).sum("sse_streams") == 0, "a stream that ended is not open")


@own(EMBEDDED)
def test_the_format_is_the_one_that_the_client_asks_for(new_stack: NewStack, kind: Kind) -> None:
    client = new_stack(kind).start().jobs.client
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    asked = {"Accept": "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    answer = client.get("/metrics", headers=asked)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


# --- who may


@own(EMBEDDED)
def test_with_keys_a_scrape_needs_one_that_may_read(new_stack: NewStack, kind: Kind) -> None:
    keys = {"r": {"identity": "prometheus", "scopes": ["read"]}, "s": {"identity": "s", "scopes": ["submit"]}}
    client = new_stack(kind, JOBS_API_KEYS=json.dumps(keys)).start().jobs.client
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer s"}).status_code == 403
    assert client.get("/metrics", headers={"Authorization": "Bearer r"}).status_code == 200


@own(EMBEDDED)
def test_without_keys_a_foreign_page_gets_nothing(new_stack: NewStack, kind: Kind) -> None:
    client = new_stack(kind).start().jobs.client
    assert client.get("/metrics", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/metrics", headers={"Origin": "http://evil.example"}).status_code == 403


# --- what is down


@pytest.mark.slow
@own(PREFORK)
def test_without_the_database_a_scrape_tells_what_the_process_knows(
    new_stack: NewStack, kind: Kind, own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    stack = new_stack(kind, slots=2, DATABASE_URL=server.new_database(migrate)).start()
    run(stack, "note", 2)
    assert scrape_of(stack).sum("jobs", status="completed") == 2
    for down, up in ((server.stop, server.start), (server.pause, server.resume)):
        down()
        began = time.monotonic()
        found = scrape_of(stack)
        assert time.monotonic() - began < FROM_SQL_WITHIN_SECONDS
        assert (found.of("database_up")[0].value, found.sum(SUBMITTED)) == (0, 2)
        assert {"jobs", "workers"}.isdisjoint(found.names())
        up()
        wait_until(lambda: scrape_of(stack).sum("jobs", status="completed") == 2, "the numbers are back", 30)
    good(stack.jobs.client.get("/readyz"))
    assert {record["status"] for record in stack.jobs.list()} <= TERMINAL
