"""Conflicting moves at the same moment: one wins, the answers say which, and the record agrees.

Each racer is a store of its own, as a process would have, on the same database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from celery_jobs.records import admission, cancel, queues, runs, workers
from celery_jobs.records.clock import now
from celery_jobs.records.errors import ForceImpossible, JobNotFound
from celery_jobs.records.moves import move
from celery_jobs.records.states import MOVES, CancelOutcome, JobStatus
from celery_jobs.records.tables import jobs
from tests.records.faces import Face
from tests.records.making import Made, claim, finish, in_state, lapse, made, row, started
from tests.records.racing import Race, only, race

LEGAL = [(source, target) for target in JobStatus for source in sorted(MOVES[target])]
S = JobStatus
ROUNDS = 12

Contest = Callable[[Face, Face, Race], None]


@pytest.fixture
def racers(new_face: Callable[[], Face]) -> Iterator[tuple[Face, Face, Race]]:
    with race(2) as start:
        yield new_face(), new_face(), start


def move_of(job: Made, source: JobStatus, target: JobStatus) -> Callable[[Face], Any]:
    """A bare move as a call: the new status, or None where it found no row."""
    statement = move({source: target}, jobs.c.id == job.id)
    return lambda face: face.write(lambda connection: connection.execute(statement.returning(jobs.c.status)).scalar())


@pytest.mark.parametrize(("source", "target"), LEGAL)
def test_of_four_equal_moves_one_wins(two: tuple[Face, Face], source: JobStatus, target: JobStatus):
    with race(4) as start:
        for _ in range(3):
            job = in_state(two[0], source)
            before = row(two[0], job.id)
            act = move_of(job, source, target)
            answers = start.run(*[partial(act, face) for face in (*two, *two)])
            assert only(answers) == target
            after = row(two[0], job.id)
            assert (after.status, after.version) == (target, before.version + 1)


CONFLICTS = [
    (source, first, second) for source, first in LEGAL for also, second in LEGAL if also is source and first < second
]


@pytest.mark.parametrize(("source", "first", "second"), CONFLICTS)
def test_of_two_moves_from_one_state_the_record_agrees_with_the_answers(
    racers: tuple[Face, Face, Race], source: JobStatus, first: JobStatus, second: JobStatus
):
    face, other, start = racers
    for _ in range(3):
        job = in_state(face, source)
        before = row(face, job.id)
        one, two = move_of(job, source, first), move_of(job, source, second)
        won = only(start.run(partial(one, face), partial(two, other)))
        after = row(face, job.id)
        assert (after.status, after.version) == (won, before.version + 1)


def cancel_against_claim(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    taken, answer = start.run(lambda: claim(a, job), lambda: b.write(cancel.cancel, job.id))
    found = row(a, job.id)
    if taken is None:
        assert (answer.outcome, found.status, found.attempt) == (CancelOutcome.canceled, S.canceled, 0)
    else:
        assert (answer.outcome, found.status, found.attempt) == (CancelOutcome.requested, S.canceling, 1)
        assert found.claim_token == taken.token


def cancel_against_finish(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    ended, answer = start.run(lambda: finish(a, job, result="1"), lambda: b.write(cancel.cancel, job.id))
    found = row(a, job.id)
    expected = {S.completed: CancelOutcome.too_late, S.canceled: CancelOutcome.requested}
    assert answer.outcome is expected[ended]
    assert found.status == ended
    assert (found.result is not None) is (ended is S.completed)


def cancel_against_retry(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    retried, answer = start.run(lambda: finish(a, job, S.pending), lambda: b.write(cancel.cancel, job.id))
    expected = {S.pending: CancelOutcome.canceled, S.canceled: CancelOutcome.requested}
    assert answer.outcome is expected[retried]
    assert (row(a, job.id).status, row(a, job.id).attempt) == (S.canceled, 1)


def force_against_retry(a: Face, b: Face, start: Race) -> None:
    job = started(a)  # in a pool of threads, which cannot force
    retried, answer = start.run(lambda: finish(a, job, S.pending), lambda: b.write(cancel.cancel, job.id, force=True))
    assert retried is S.pending
    if isinstance(answer, ForceImpossible):
        assert row(a, job.id).status == S.pending
    else:
        assert (answer.outcome, row(a, job.id).status) == (CancelOutcome.canceled, S.canceled)


def cancel_against_cancel(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    first, second = start.run(lambda: a.write(cancel.cancel, job.id), lambda: b.write(cancel.cancel, job.id))
    assert first.outcome is second.outcome is CancelOutcome.requested
    assert first.record.cancel_requested_at == second.record.cancel_requested_at
    assert row(a, job.id).version == 2


def duplicate_delivery(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    won = only(start.run(lambda: claim(a, job), lambda: claim(b, job)))
    found = row(a, job.id)
    assert (found.status, found.attempt, found.claim_token) == (S.running, 1, won.token)


def claim_against_pause(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    taken, view = start.run(lambda: claim(a, job), lambda: b.write(queues.change, job.queue, paused=True))
    found = row(a, job.id)
    assert found.dispatched_at is None
    assert found.status == (S.pending if taken is None else S.running)
    assert view.running == (0 if taken is None else 1)


def claim_against_undispatch(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    taken, _ = start.run(lambda: claim(a, job), lambda: runs.undispatch(b.store, job.id, 0))
    assert (row(a, job.id).status, row(a, job.id).dispatched_at) == (S.running if taken else S.pending, None)


def claim_against_unmark(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    taken, unmarked = start.run(lambda: claim(a, job), lambda: b.write(admission.unmark, [job.id]))
    assert (taken is None) is (unmarked == 1)
    assert row(a, job.id).status == (S.pending if unmarked else S.running)


def claim_against_republication(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    [(out, _)] = [each for each in a.read(admission.overdue, -1.0) if each[0].id == job.id]
    taken, counted = start.run(lambda: claim(a, job), lambda: b.write(admission.republished, out))
    assert taken is not None
    assert row(a, job.id).publications == (2 if counted else 1)


def claim_against_expiry(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    at_once = jobs.update().where(jobs.c.id == job.id).values(expires_at=now())
    b.write(lambda connection: connection.execute(at_once))
    taken, expired = start.run(lambda: claim(a, job), lambda: b.write(cancel.expire))
    assert (taken, expired, row(a, job.id).status) == (None, [job.id], S.canceled)


def finish_against_bury(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    lapse(a, job.runner)
    ended, buried = start.run(lambda: finish(a, job), lambda: b.write(workers.bury, job.runner.incarnation))
    assert (ended, buried) in [(S.completed, []), (None, [job.id])]
    assert row(a, job.id).status == (ended or S.failed)


def finish_against_requeue(a: Face, b: Face, start: Race) -> None:
    job = started(a, retry_on_worker_lost=True)
    lapse(a, job.runner)
    ended, buried = start.run(lambda: finish(a, job), lambda: b.write(workers.bury, job.runner.incarnation))
    assert (ended, buried) in [(S.completed, []), (None, [job.id])]
    assert row(a, job.id).status == (ended or S.pending)


def finish_against_itself(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    assert start.run(lambda: finish(a, job), lambda: finish(b, job)) == [S.completed, S.completed]
    assert row(a, job.id).version == 2


def finish_against_shutdown(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    ended, closed = start.run(
        lambda: finish(a, job), lambda: b.write(workers.cancel_for_shutdown, job.runner.incarnation)
    )  # fmt: skip
    assert (ended, closed) in [(S.completed, []), (None, [job.id])]
    assert row(a, job.id).status == (ended or S.canceled)


def finish_against_progress(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    ended, told = start.run(lambda: finish(a, job), lambda: runs.progress(b.store, job.held, "{}"))
    assert ended is S.completed
    assert row(a, job.id).progress_seq == (1 if told else 0)


def bury_against_bury(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    lapse(a, job.runner)
    burials = [lambda face=face: face.write(workers.bury, job.runner.incarnation) or None for face in (a, b)]
    assert only(start.run(*burials)) == [job.id]


def bury_against_renewal(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    lapse(a, job.runner)
    renewed, buried = start.run(
        lambda: a.write(workers.renew, job.runner.incarnation, 60.0, 4),
        lambda: b.write(workers.bury, job.runner.incarnation),
    )
    assert (renewed, buried) in [(True, []), (False, [job.id])]
    assert row(a, job.id).status == (S.running if renewed else S.failed)


def delete_against_claim(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    taken, deleted = start.run(lambda: claim(a, job), lambda: b.write(cancel.delete_job, job.id))
    found = row(a, job.id)
    assert found.deleted_at is not None
    assert deleted.executing is (taken is not None)
    assert found.status == (S.canceling if taken else S.canceled)


def delete_against_finish(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    ended, deleted = start.run(lambda: finish(a, job), lambda: b.write(cancel.delete_job, job.id))
    assert (ended, deleted.executing) in [(S.completed, False), (S.canceled, True)]
    assert row(a, job.id).status == ended


def delete_against_delete(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    answers = start.run(lambda: a.write(cancel.delete_job, job.id), lambda: b.write(cancel.delete_job, job.id))
    assert sorted(type(answer).__name__ for answer in answers) == ["Deleted", "JobNotFound"]


def delete_against_cancel(a: Face, b: Face, start: Race) -> None:
    job = started(a)
    deleted, answer = start.run(lambda: a.write(cancel.delete_job, job.id), lambda: b.write(cancel.cancel, job.id))
    assert deleted.executing is True
    assert isinstance(answer, JobNotFound) or answer.outcome is CancelOutcome.requested
    assert row(a, job.id).status == S.canceling


def admission_against_admission(a: Face, b: Face, start: Race) -> None:
    job = made(a, handed_over=False)
    batches = start.run(lambda: a.write(admission.admit, job.queue), lambda: b.write(admission.admit, job.queue))
    assert [out.id for batch in batches for out in batch] == [job.id]


def admission_against_cancel(a: Face, b: Face, start: Race) -> None:
    job = made(a, handed_over=False)
    batch, answer = start.run(lambda: a.write(admission.admit, job.queue), lambda: b.write(cancel.cancel, job.id))
    assert answer.outcome is CancelOutcome.canceled
    assert [out.id for out in batch] in ([], [job.id])
    assert (row(a, job.id).status, row(a, job.id).dispatched_at) == (S.canceled, None)


def claim_against_bury(a: Face, b: Face, start: Race) -> None:
    job = made(a)
    lapse(a, job.runner)
    job.claim, _ = start.run(lambda: claim(a, job), lambda: b.write(workers.bury, job.runner.incarnation))
    a.write(workers.close_orphans)  # a run that began while its worker's row went is judged all the same
    assert row(a, job.id).status == (S.failed if job.claim else S.pending)
    assert job.claim is None or finish(a, job) is None


CONTESTS: list[Contest] = [
    *(cancel_against_claim, cancel_against_finish, cancel_against_retry, cancel_against_cancel, force_against_retry),
    *(duplicate_delivery, claim_against_pause, claim_against_undispatch, claim_against_unmark),
    *(claim_against_republication, claim_against_expiry, finish_against_bury, finish_against_requeue),
    *(finish_against_itself, finish_against_shutdown, finish_against_progress, bury_against_bury),
    *(bury_against_renewal, delete_against_claim, delete_against_finish, delete_against_delete),
    *(delete_against_cancel, admission_against_admission, admission_against_cancel, claim_against_bury),
]


@pytest.mark.parametrize("contest", CONTESTS)
def test_the_answers_and_the_record_agree_on_who_won(racers: tuple[Face, Face, Race], contest: Contest):
    for _ in range(ROUNDS):
        contest(*racers)
