"""Figures, the table on the screen and the JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results")
_PACKAGES = ("celery", "fastapi", "uvicorn", "uvloop", "httptools", "sqlalchemy", "psycopg", "redis", "kombu")


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


def median_figure(group: str, name: str, rounds: Sequence[float], unit: str, cpu_ms: Sequence[float] = ()) -> Figure:
    """The median of the rounds; of the processor times the smallest, which disturbances only raise."""
    cpu = min(cpu_ms) if cpu_ms else None
    return Figure(group, name, statistics.median(rounds), unit, tuple(round(each, 3) for each in rounds), cpu)


def compared(figures: Sequence[Figure], name: str, peer: str, at_least: float | None = None) -> list[Figure]:
    """The figures with this one set against its peer, where both were measured: round by round, then the median."""
    by_name = {figure.name: figure for figure in figures}
    if name not in by_name or peer not in by_name:
        return list(figures)
    mine, other = by_name[name], by_name[peer]
    if len(mine.rounds) == len(other.rounds) > 0:
        ratio = statistics.median(a / b for a, b in zip(mine.rounds, other.rounds, strict=True))
    else:
        ratio = mine.value / other.value
    aim = None if at_least is None else f"ratio >= {at_least:g}"
    met = None if at_least is None else ratio >= at_least
    new = replace(mine, peer=peer, ratio=ratio, aim=aim, met=met)
    return [new if figure is mine else figure for figure in figures]


def bounded(figure: Figure, at_most: float) -> Figure:
    """The figure with an aim for its value."""
    return replace(figure, aim=f"<= {at_most:g} {figure.unit}", met=figure.value <= at_most)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(figures: Sequence[Figure], notes: Sequence[str]) -> None:
    """The table."""
    table = Table(title="celery-jobs beside bare Celery and bare FastAPI", title_justify="left")
    for heading in ("measured", "value", "cpu ms", "ratio", "to", "aim", ""):
        table.add_column(heading, justify="right" if heading in ("value", "cpu ms", "ratio") else "left")
    group = None
    for figure in figures:
        if figure.group != group:
            group = figure.group
            table.add_section()
            table.add_row(f"[bold]{group}[/bold]")
        table.add_row(*_cells(figure))
    console = Console(width=None if Console().is_terminal else 150)
    console.print(table)
    for note in notes:
        console.print(f"- {note}", highlight=False)


def _cells(figure: Figure) -> list[str]:
    met = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}[figure.met]
    digits = 0 if figure.value >= 100 else 2
    return [
        f"  {figure.name}",
        f"{figure.value:,.{digits}f} {figure.unit}",
        "" if figure.cpu_ms is None else f"{figure.cpu_ms:.2f}",
        "" if figure.ratio is None else f"{figure.ratio:.2f} x",
        figure.peer or "",
        figure.aim or "",
        met,
    ]


def save(figures: Sequence[Figure], notes: Sequence[str], quick: bool, load_before: float) -> Path:
    """Write it to benchmarks/results; nothing in it names the machine or a folder."""
    now = datetime.now(UTC)
    document = {
        "measured_at": now.isoformat(timespec="seconds"),
        "quick": quick,
        "cores": os.cpu_count(),
        "load_before": load_before,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "figures": [asdict(figure) for figure in figures],
        "notes": list(notes),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%dT%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path
