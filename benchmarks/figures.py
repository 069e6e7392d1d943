"""Measured values: medians, percentiles, ratios to a peer, and aims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `ratio` is value / peer's value in the same run, and `aim` bounds the ratio or the value."""

    group: str
    name: str
    value: float
    unit: str
    rounds: tuple[float, ...] = ()
    cpu_ms: float | None = None  # processor time of all server processes per request or job: does not see other load
    peer: str | None = None
    ratio: float | None = None
    aim: str | None = None
    met: bool | None = None


# what a part comes to: its figures, and what a reader should know of them
Measured = tuple[list[Figure], list[str]]


def median_figure(group: str, name: str, rounds: Sequence[float], unit: str, cpu_ms: Sequence[float] = ()) -> Figure:
    """The median of the rounds; of the processor times the smallest, which disturbances only raise."""
    cpu = min(cpu_ms) if cpu_ms else None
    return Figure(group, name, statistics.median(rounds), unit, tuple(round(each, 3) for each in rounds), cpu)


def compared(
    figures: Sequence[Figure], name: str, peer: str, at_least: float | None = None, at_most: float | None = None
) -> list[Figure]:
    """The figures with this one set against its peer, where both were measured: round by round, then the median.

    An aim for the ratio replaces one for the value.
    """
    by_name = {figure.name: figure for figure in figures}
    if name not in by_name or peer not in by_name:
        return list(figures)
    mine, other = by_name[name], by_name[peer]
    if len(mine.rounds) == len(other.rounds) > 0:
        ratio = statistics.median(a / b for a, b in zip(mine.rounds, other.rounds, strict=True))
    else:
        ratio = mine.value / other.value
    new = replace(mine, peer=peer, ratio=ratio)
    if at_least is not None:
        new = replace(new, aim=f"ratio >= {at_least:g}", met=ratio >= at_least)
    if at_most is not None:
        new = replace(new, aim=f"ratio <= {at_most:g}", met=ratio <= at_most)
    return [new if figure is mine else figure for figure in figures]


def bounded(figure: Figure, at_most: float | None = None, at_least: float | None = None) -> Figure:
    """The figure with an aim for its value; None is no aim."""
    if at_least is not None:
        return replace(figure, aim=f">= {at_least:g} {figure.unit}", met=figure.value >= at_least)
    if at_most is None:
        return figure
    return replace(figure, aim=f"<= {at_most:g} {figure.unit}", met=figure.value <= at_most)


def spread(
    group: str,
    name: str,
    milliseconds: Sequence[float],
    *,
    p50: float | None = None,
    p99: float | None = None,
    worst: float | None = None,
    shows: Sequence[str] = ("p50", "p99"),
) -> list[Figure]:
    """Of many times, those that `shows` names out of p50, p99 and max; the numbers are aims for them."""
    values = {"p50": statistics.median(milliseconds), "p99": percentile(milliseconds, 0.99), "max": max(milliseconds)}
    aims = {"p50": p50, "p99": p99, "max": worst}
    return [bounded(Figure(group, f"{name}, {which}", values[which], "ms"), aims[which]) for which in shows]


def beside(figures: Sequence[Figure], name: str, peer: str, shows: Sequence[str] = ("p50", "p99")) -> list[Figure]:
    """Each of these of `name` set against the same of `peer`."""
    result = list(figures)
    for which in shows:
        result = compared(result, f"{name}, {which}", f"{peer}, {which}")
    return result


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def number(value: float) -> str:
    """With as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"
