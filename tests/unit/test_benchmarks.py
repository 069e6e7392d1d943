"""What the benchmarks rest on: whole answers, ends in a stream, aims, and the page that shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import page
from benchmarks.clients.follow import Ends
from benchmarks.clients.wire import End, body_of, complete, end_in
from benchmarks.figures import Figure, bounded, compared, number, spread

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1,2,\r\n2\r\n3]\r\n0\r\n\r\n"
SIZED = b'HTTP/1.1 202 Accepted\r\nContent-Length: 7\r\n\r\n{"a":1}'


@pytest.mark.parametrize("answer", [CHUNKED, SIZED])
def test_an_answer_is_complete_with_its_last_byte_and_not_before(answer: bytes) -> None:
    assert [size for size in range(len(answer) + 1) if complete(answer[:size])] == [len(answer)]


def test_the_body_of_a_chunked_answer_is_put_together() -> None:
    assert (body_of(CHUNKED), body_of(SIZED)) == (b"[1,2,3]", b'{"a":1}')


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'data: {"id":"01J","status":"completed","finished_at":"2026-01-01T00:00:01.5Z"}\n\n', "completed"),
        (b'data: {"status": "SUCCESS", "finished_at": "2026-01-01T00:00:01.500000+00:00"}\n\n', "SUCCESS"),
    ],
)
def test_the_end_of_a_job_is_found_in_our_events_and_in_those_of_the_peer(event: bytes, status: str) -> None:
    begun = b'data: {"id":"01J","status":"running","finished_at":null}\n\n'
    assert end_in(begun, 5.0) is None
    assert end_in(begun + event, 5.0) == End(5.0, 1767225601.5, status)


def test_news_from_before_the_end_is_no_figure() -> None:
    ends = Ends([End(arrived=10.0, finished=10.5, status="completed")], cpu_seconds=0.0, seconds=1.0)
    with pytest.raises(AssertionError, match="clocks"):
        ends.delays_ms()


def test_an_aim_for_the_ratio_replaces_one_for_the_value_and_a_comparison_without_aim_keeps_it() -> None:
    small, large = Figure("g", "small", 2.0, "ms"), bounded(Figure("g", "large", 3.0, "ms"), 2.5)
    kept = compared([small, large], "large", "small")[1]
    replaced = compared([small, large], "large", "small", at_most=1.6)[1]
    assert (kept.ratio, kept.aim, kept.met) == (1.5, "<= 2.5 ms", False)
    assert (replaced.aim, replaced.met) == ("ratio <= 1.6", True)


def test_a_spread_shows_what_was_asked_for_with_its_aims() -> None:
    figures = spread("g", "ours", [1.0, 2.0, 9.0], p50=2.0, worst=5.0, shows=("p50", "max"))
    assert [(each.name, each.value, each.met) for each in figures] == [
        ("ours, p50", 2.0, True),
        ("ours, max", 9.0, False),
    ]


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.0123, "0.0123"), (7.5, "7.50"), (12345.6, "12,346")])
def test_a_number_has_the_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def result(*figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "measured_at": "2026-01-02T03:04:05+00:00",
        "quick": False,
        "cores": 2,
        "load_before": 0.1,
        "python": "3.11.7",
        "packages": {"celery": "5.7.0"},
        "figures": list(figures),
        "notes": ["a note"],
    }


MET = {"group": "lists", "name": "ours", "value": 3.0, "unit": "ms", "aim": "<= 5 ms", "met": True}
MISSED = {"group": "streams", "name": "ours", "value": 70.0, "unit": "ms", "aim": "<= 50 ms", "met": False}


def test_the_tables_change_and_the_words_around_them_stay() -> None:
    before = f"Words.\n\n{page.BEGIN}\nold\n{page.END}\n\nMore words.\n"
    after = page.with_figures(before, result(MET, MISSED))
    assert after.startswith(f"Words.\n\n{page.BEGIN}")
    assert after.endswith(f"{page.END}\n\nMore words.\n")
    assert "old" not in after
    assert page.with_figures(after, result(MET, MISSED)) == after


def test_the_page_counts_the_aims_and_names_those_that_are_missed() -> None:
    text = page.with_figures(f"{page.BEGIN}\n{page.END}", result(MET, MISSED))
    assert "1 of 2 aims are met. Missed:" in text
    assert "| streams: ours | 70.00 ms |" in text
    assert "| lists: ours |" not in text


def test_a_page_without_a_place_for_the_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="comments"):
        page.with_figures("Words.", result(MET))


def test_the_page_of_this_repository_has_the_place() -> None:
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert "performance.svg" in page.with_figures(text, result(MET))
