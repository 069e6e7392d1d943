"""Arguments of any type (contract, section 6): the schema says what may be sent, and typed values arrive."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tests.acceptance.kinds import shared
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, PREFORK, Stack
from tests.support.waiting import wait_until

SENT: dict[str, Any] = {
    "shape": {"points": [{"x": 1}, {"x": 2, "y": 3}], "drawn_at": "2026-01-02T03:04:05Z", "inner": {"color": "b"}},
    "shapes": {"a": [{}]},
    "pair": {"left": 1, "right": {"x": 2}},
    "color": "b",
    "at": "2026-01-02T03:04:05+02:00",
    "day": "2026-01-02",
    "lasting": "PT90S",
    "ident": "00000000-0000-0000-0000-000000000001",
    "price": "1.50",
    "path": "/a/b",
    "percent": 100,
    "form": {"kind": "square", "side": 2.5},
    "either": "1",
    "both": [1, "r"],
    "several": [1, 2],
}
ARRIVES = {
    "shape": "Shape(points=[Point(x=1, y=0), Point(x=2, y=3)], color=<Color.red: 'r'>, "
    "drawn_at=datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=TzInfo(0)), "
    "inner=Shape(points=[], color=<Color.blue: 'b'>, drawn_at=None, inner=None))",
    "shapes": "{'a': [Shape(points=[], color=<Color.red: 'r'>, drawn_at=None, inner=None)]}",
    "pair": "Pair(left=1, right=Point(x=2, y=0))",
    "color": "<Color.blue: 'b'>",
    "at": "datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=TzInfo(7200))",
    "day": "datetime.date(2026, 1, 2)",
    "lasting": "datetime.timedelta(seconds=90)",
    "ident": "UUID('00000000-0000-0000-0000-000000000001')",
    "price": "Decimal('1.50')",
    "path": "PosixPath('/a/b')",
    "percent": "100",
    "form": "Square(kind='square', side=2.5)",
    "either": "'1'",
    "both": "(1, <Color.red: 'r'>)",
    "several": "{1, 2}",
    "maybe": "None",
    "default": "Point(x=7, y=0)",
}
BAD: list[tuple[str, Any, list[str | int]]] = [
    ("shape", {"points": [{"x": "1"}]}, ["shape", "points", 0, "x"]),
    ("shapes", {"a": {}}, ["shapes", "a"]),
    ("pair", {"left": 1}, ["pair", "right"]),
    ("color", "red", ["color"]),
    ("at", 1, ["at"]),
    ("percent", 101, ["percent"]),
    ("form", {"kind": "circle", "side": 1}, ["form", "circle", "radius"]),
    ("both", [1], ["both", 1]),
    ("maybe", {}, ["maybe", "x"]),
]


def schema_of(stack: Stack, task: str) -> dict[str, Any]:
    tasks = good(stack.jobs.client.get("/api/v1/tasks"), 200).json()
    return next(each["schema"] for each in tasks if each["name"] == task)


@shared(EMBEDDED, PREFORK)
def test_what_was_sent_arrives_typed(stack: Stack) -> None:
    jsonschema_rs.validator_for(schema_of(stack, "arguments.every")).validate(SENT)
    job = stack.jobs.submit("arguments.every", **SENT)
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == ARRIVES


@shared(EMBEDDED)
@pytest.mark.parametrize(("name", "value", "where"), BAD)
def test_what_does_not_fit_is_refused_at_its_place_as_the_schema_says(
    stack: Stack, name: str, value: Any, where: list[str | int]
) -> None:
    bad = SENT | {name: value}
    assert not jsonschema_rs.validator_for(schema_of(stack, "arguments.every")).is_valid(bad)
    answer = stack.jobs.client.post("/api/v1/tasks/arguments.every", json=bad)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["loc"] == ["body", *where]


@shared(EMBEDDED, PREFORK)
def test_parameters_of_every_kind_arrive_typed(stack: Stack) -> None:
    schema = schema_of(stack, "arguments.kinds")
    assert schema["required"] == ["first", "second"]
    assert schema["properties"].keys() == {"first", "second", "third"}
    job = stack.jobs.submit("arguments.kinds", first="r", second="b", fourth="b")
    stack.jobs.wait(job, "completed")
    red, blue = "<Color.red: 'r'>", "<Color.blue: 'b'>"
    expected = {"name": "'arguments.kinds'", "first": red, "second": blue, "rest": "()", "third": red}
    assert stack.jobs.result(job)["result"] == expected | {"more": f"{{'fourth': {blue}}}"}
    sender = stack.jobs.submit("arguments.send")
    stack.jobs.wait(sender, "completed")
    path = f"/api/v1/jobs/{stack.jobs.result(sender)['result']}"
    wait_until(lambda: stack.jobs.client.get(path).json().get("status") == "completed", "it was sent past the service")
    result = stack.jobs.client.get(f"{path}/$result").json()["result"]
    assert result == expected | {"rest": f"({red}, {blue})", "third": blue, "more": f"{{'fourth': {red}}}"}
