"""Far more work than fits: nothing is lost or false, others are served meanwhile, and memory stays bounded.

`python -m tests.floods` is the same at full size, with figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.kinds import own
from tests.floods import floods
from tests.floods.floods import Measured
from tests.floods.stand import SLOTS, prepare
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack

NewStack = Callable[..., Stack]

MOST_MIB_PER_FLOOD = 60.0  # 5,000 kept bodies, 5,000 kept records or 40 kept results would be more
SLOWEST_SECONDS = 5.0


def fine(measured: Measured) -> None:
    """What others got meanwhile, and what it cost."""
    assert measured.gauge is not None
    for part in measured.gauge.courses:
        assert measured.gauge.grown(part) < MOST_MIB_PER_FLOOD, (measured.name, part, measured.gauge.courses)
    assert measured.probed.longest < SLOWEST_SECONDS, (measured.name, measured.probed.seconds)


def flooded(stack: Stack, jobs: int, few: int, large: int) -> None:
    held = floods.take_slots(stack)
    measured, ids = floods.many_submits(stack, jobs, held)
    fine(measured)
    stack.jobs.change_queue(paused=True)
    canceled, deleted, waiting = floods.split(ids, few, few)
    fine(floods.burst_of_cancels(stack, canceled, held))
    fine(floods.deletes(stack, deleted))
    fine(floods.deletes(stack, waiting[few:]))
    fine(floods.backlog_that_drains(stack, waiting[:few]))
    assert not floods.started(stack, [*canceled, *deleted, *waiting[few:]]), "code ran after its cancel or its delete"
    fine(floods.jobs_of_no_length(stack, few))
    fine(floods.results_at_the_limit(stack, large))


@own(EMBEDDED)
def test_a_flood_loses_nothing_and_leaves_nothing_behind(new_stack: NewStack, kind: Kind) -> None:
    flooded(prepare(new_stack(kind, slots=SLOTS)), jobs=2_000, few=200, large=20)


@pytest.mark.slow
@own(PREFORK, SQLITE)
def test_a_flood_over_several_processes(new_stack: NewStack, kind: Kind) -> None:
    flooded(prepare(new_stack(kind, slots=SLOTS)), jobs=5_000, few=1_000, large=100)
