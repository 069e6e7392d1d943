"""A storm as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.judge import QUESTIONS
from tests.chaos.run import Outcome

CLIENT_QUESTIONS = ("calls without an answer", "server errors")


def problems(outcome: Outcome) -> dict[str, int]:
    """Every count that should be nothing."""
    found = {question: outcome.verdict.broken[question] for question in QUESTIONS}
    found |= dict.fromkeys(CLIENT_QUESTIONS, 0) | outcome.clients
    found |= {name: count for name, count in outcome.verdict.broken.items() if name not in found}
    found["processes that died by themselves"] = len(outcome.toll.died_alone)
    found["processes that did not end when told to"] = len(outcome.toll.late_exits)
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: one column a storm."""
    rows: list[list[str]] = [["", *(f"{each.storm.kind}" for each in outcomes)], ["---", *("---:" for _ in outcomes)]]
    facts = {
        "seconds under faults": [f"{each.storm.seconds:g}" for each in outcomes],
        "faults": [str(sum(each.toll.done.values())) for each in outcomes],
        "jobs submitted": [str(each.verdict.jobs) for each in outcomes],
        "runs of their code": [str(each.verdict.runs) for each in outcomes],
    }
    rows += [[name, *values] for name, values in facts.items()]
    for end in ("completed", "failed", "canceled", "deleted"):
        rows.append([end, *(str(each.verdict.ends[end]) for each in outcomes)])
    found = [problems(each) for each in outcomes]
    for name in dict.fromkeys(name for each in found for name in each):
        rows.append([f"**{name}**", *(str(each.get(name, 0)) for each in found)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def faults(outcomes: Sequence[Outcome]) -> str:
    """Markdown: how often each fault struck."""
    names = dict.fromkeys(name for each in outcomes for name in each.toll.done)
    rows = [["fault", *(each.storm.kind for each in outcomes)], ["---", *("---:" for _ in outcomes)]]
    rows += [[name, *(str(each.toll.done[name]) for each in outcomes)] for name in names]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def examples(outcome: Outcome) -> str:
    """Some of what broke a promise, to look at."""
    told = [f"{name}: {each}" for name, some in outcome.verdict.examples.items() for each in some]
    told += [f"died by itself: {each}" for each in outcome.toll.died_alone[:3]]
    told += [f"late: {each}" for each in outcome.late[:5]]
    told += [f"did not end: {each}" for each in outcome.toll.late_exits[:3]]
    return "\n".join(told)


def timeline(outcome: Outcome) -> str:
    """When which fault began and ended."""
    return "\n".join(f"{since:.1f} to {until:.1f}: {name}" for since, until, name in sorted(outcome.toll.log))
