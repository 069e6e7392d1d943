"""Reading what the service says as the strictest client would."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.jobs import PREFIX, Jobs, good
from tests.support.sse import Event, parse


def strict(content: bytes) -> Any:
    """The JSON, which must be valid UTF-8 without lone surrogates, and without the numbers that JSON does not know."""
    text = content.decode("utf-8")
    value = json.loads(text, parse_constant=_refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def problem(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The body of a refusal, which must be a problem document; a 422 names its faults."""
    assert answer.status_code in statuses, f"{answer.request.url}: {answer.status_code} {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/problem+json"
    body = strict(answer.content)
    assert body["status"] == answer.status_code
    assert "Traceback" not in answer.text
    if answer.status_code == 422:
        assert body["errors"]
        assert all(set(fault) == {"loc", "msg", "type"} for fault in body["errors"])
    return body


def events(content: bytes) -> list[Event]:
    """The events of a whole stream: any client splits it into the same lines, and each event has one line of data."""
    text = content.decode("utf-8")
    assert text.endswith("\n\n")
    lines = text.split("\n")
    assert text.splitlines() == lines[:-1]
    assert all(line.startswith(("id: ", "data: ", ":")) or not line for line in lines)
    for frame in text.split("\n\n"):
        assert frame.count("data: ") <= 1 or frame.count("\ndata: ") == 1
        for line in frame.split("\n"):
            if line.startswith("data: "):
                strict(line.removeprefix("data: ").encode())
    return [event for event in parse(lines) if event.comment is None]


def everywhere(jobs: Jobs, job: str) -> dict[str, Any]:
    """The record of a job that has ended; record, list, result and stream are valid and agree."""
    record = strict(good(jobs.client.get(f"{PREFIX}/{job}"), 200).content)
    result = strict(good(jobs.client.get(f"{PREFIX}/{job}/$result"), 200).content)
    assert result == strict(good(jobs.client.get(f"/api/v1/compute/{job}/result"), 200).content)
    assert (result["status"], result["error"]) == (record["status"], record["error"])
    listed = {each["id"]: each for each in strict(good(jobs.client.get(PREFIX), 200).content)}[job]
    assert not {"result", "error_traceback"} & listed.keys()
    assert listed.items() <= record.items()
    [told] = events(good(jobs.client.get(f"{PREFIX}/{job}/$stream"), 200).content)
    assert told.data == record
    return record
