"""The short form of `make chaos`: a storm of faults, and then nothing is lost and nothing false (see `tests.chaos`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.report import examples, problems, table, timeline
from tests.chaos.run import Storm, blow

SECONDS = 12.0


@pytest.mark.parametrize(
    "kind", ["redis-postgresql", *(pytest.param(each, marks=pytest.mark.slow) for each in ("embedded", "redis-sqlite"))]
)
def test_a_storm_of_faults_leaves_nothing_lost_and_nothing_false(kind: str, tmp_path: Path) -> None:
    # other tests run beside it, on few processors
    outcome = blow(Storm(kind, SECONDS, pause=(0.3, 2.0), answer_seconds=15.0), tmp_path)
    print(f"{timeline(outcome)}\n{table([outcome])}\n{examples(outcome)}")
    assert outcome.toll.done, "no fault struck"
    assert outcome.verdict.runs >= SECONDS, "hardly any job ran"
    assert not {name: count for name, count in problems(outcome).items() if count}
