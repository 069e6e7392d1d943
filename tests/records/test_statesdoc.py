"""docs/states.md is generated."""

from __future__ import annotations

from pathlib import Path

from celery_jobs.records import statesdoc
from celery_jobs.records.states import MOVES, JobStatus

PAGE = Path(__file__).resolve().parents[2] / "docs" / "states.md"


def test_the_page_is_what_the_table_of_moves_gives():
    again = "run: python -m celery_jobs.records.statesdoc > docs/states.md"
    assert PAGE.read_text(encoding="utf-8") == statesdoc.document(), again


def test_every_state_and_every_move_is_explained_and_no_other():
    assert set(statesdoc.PROMISES) == set(JobStatus)
    assert set(statesdoc.WHEN) == {(source, target) for target in MOVES for source in MOVES[target]}
