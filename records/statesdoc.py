"""Generates docs/states.md from MOVES: `python -m celery_jobs.records.statesdoc > docs/states.md`."""

from __future__ import annotations

import sys

from celery_jobs.records.states import MOVES, TERMINAL, JobStatus, task_status

_S = JobStatus

PROMISES: dict[JobStatus, str] = {
    _S.pending: "Waits: to be submitted to a worker, for its time, for a retry. A cancel now means that it never runs.",
    _S.running: "A worker claimed it, and its code may be running; `attempt` counts these claims.",
    _S.canceling: "Somebody asked to cancel it and its code has not stopped yet; it keeps its slot until then.",
    _S.completed: "Its code returned; the result is stored and stays as it is.",
    _S.failed: "Its code raised, its result could not be stored, or its worker was lost; `error` says which.",
    _S.canceled: "Its code never ran, or has stopped (what a remote worker runs is told to); `error` says why where "
    "nobody asked.",
}

WHEN: dict[tuple[JobStatus, JobStatus], str] = {
    (_S.running, _S.pending): "a retry, or its worker was lost (or shut down) and the task is safe to run again",
    (_S.pending, _S.running): "a worker claims it",
    (_S.running, _S.canceling): "cancel",
    (_S.pending, _S.canceling): "cancel, when it was already published to workers that know nothing of us",
    (_S.running, _S.completed): "its code returned",
    (_S.running, _S.failed): "its code raised, or its worker was lost",
    (_S.pending, _S.failed): "no worker can run it",
    (_S.pending, _S.canceled): "cancel, delete, or expiry before it started",
    (_S.running, _S.canceled): "a coroutine was interrupted, the service shut down, or a remote worker runs it",
    (_S.canceling, _S.canceled): "its code stopped, whatever it returned or raised",
}

_HEAD = """# Job states

Generated from `MOVES` in `records/states.py`: `python -m celery_jobs.records.statesdoc > docs/states.md`.

Every write of a status is one guarded UPDATE (`records/moves.py`) that names the states it may come from. One that
finds no row changes nothing, and the caller reads what is true now. A terminal state of a `@job` never changes.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_states(), "", *_diagram(), "", *_moves(), "", *_words(), ""])


def _states() -> list[str]:
    rows = [f"| `{status}` | {PROMISES[status]} | {'yes' if status in TERMINAL else ''} |" for status in JobStatus]
    return ["## What each promises", "", "| state | promise | terminal |", "|---|---|---|", *rows]


def _pairs() -> list[tuple[JobStatus, JobStatus]]:
    return [(source, target) for source in JobStatus for target in JobStatus if source in MOVES[target]]


def _diagram() -> list[str]:
    arrows = [f"    {source} --> {target}" for source, target in _pairs()]
    ends = [f"    {status} --> [*]" for status in JobStatus if status in TERMINAL]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {_S.pending}", *arrows, *ends, "```"]


def _moves() -> list[str]:
    rows = [f"| `{source}` | `{target}` | {WHEN[source, target]} |" for source, target in _pairs()]
    return ["## Which moves exist", "", "| from | to | when |", "|---|---|---|", *rows]


def _words() -> list[str]:
    rows = [f"| `{status}` | `{task_status(status, claimed=False)}` |" for status in JobStatus]
    claimed = f"| `{_S.pending}`, and a remote worker has it | `{task_status(_S.pending, claimed=True)}` |"
    head = ["## The same in the words of `/v1/joblib`", "", "| here | there |", "|---|---|"]
    return [*head, rows[0], claimed, *rows[1:]]


if __name__ == "__main__":
    sys.stdout.write(document())
