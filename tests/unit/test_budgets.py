"""The size budgets: what is over is named, and the list of exceptions only shrinks."""

from __future__ import annotations

from pathlib import Path

from scripts import budgets

LONG = "class Room:\n    @decorator\n    async def fill(self):\n" + "        pass\n" * 40


def test_a_long_function_is_named(tmp_path: Path) -> None:
    file = tmp_path / "room.py"
    file.write_text(LONG, encoding="utf-8")
    assert dict(budgets.oversized(file, "api/room.py")) == {"api/room.py::Room.fill": 41}


def test_a_long_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "room.py"
    file.write_text("x = 1\n" * 301, encoding="utf-8")
    assert dict(budgets.oversized(file, "api/room.py")) == {"api/room.py": 301}


def test_within_budget_is_no_fault() -> None:
    assert budgets.judge({}, {}, {}) == []


def test_an_exception_allows_just_what_it_says() -> None:
    assert budgets.judge({"api/room.py": 310}, {"api/room.py": 310}, {"api/room.py": 320}) == []
    assert budgets.judge({"api/room.py": 311}, {"api/room.py": 310}, None) != []


def test_an_exception_that_is_larger_than_needed_must_be_lowered() -> None:
    assert "lower" in budgets.judge({"api/room.py": 305}, {"api/room.py": 310}, None)[0]
    assert "remove" in budgets.judge({}, {"api/room.py": 310}, None)[0]


def test_a_new_exception_is_refused() -> None:
    assert "may only shrink" in budgets.judge({"api/room.py": 310}, {"api/room.py": 310}, {})[0]
