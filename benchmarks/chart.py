"""One picture of a result: small panels, ours dark and the peers light, so that it reads in black and white too."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import floor, log10
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, number
from benchmarks.parts import (
    cancels,
    lists,
    memory,
    overhead,
    remote,
    remote_waits,
    starts,
    streams,
    submits,
    throughput,
    waits,
    whole,
)

_COLUMNS = 3
_OURS, _PEER, _AIM = "#1f1f1f", "#ffffff", "#c03030"
_WIDTH_INCHES, _ROW_INCHES = 15.0, 2.9
# text stays text; Verdana is as wide as the font that the layout was made with
_TEXT = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
}


@dataclass(frozen=True)
class Panel:
    """Bars of one group: (label, name of the figure); what the result lacks is left out."""

    title: str
    group: str  # * and {…} stand for anything
    bars: Sequence[tuple[str, str]]
    unit: str
    log: bool = True
    aim: float | None = None
    more_is_better: bool = False


def _each(names: Sequence[tuple[str, str]], suffixes: Sequence[str]) -> list[tuple[str, str]]:
    """Every name with every suffix."""
    return [(f"{label}, {suffix}", f"{name}, {suffix}") for label, name in names for suffix in suffixes]


_KINDS = [("prefork", "ours, prefork"), ("threads", "ours, threads"), ("embedded", "ours embedded")]
_SERVED = [_KINDS[0], _KINDS[2]]
_WORKERS = [("prefork", "ours, prefork worker"), ("threads", "ours, threads worker"), ("embedded", "ours embedded")]

PANELS = (
    Panel(
        "Submits over HTTP",
        submits.GROUP,
        [
            ("ours", "ours, noop"),
            ("ours, embedded", "ours embedded, noop, paused"),
            ("delay() endpoint", submits.DELAY),
            ("apply_async, no HTTP", submits.POOL),
            ("FastAPI doing nothing", submits.NOTHING),
        ],
        "/s",
        log=False,
        more_is_better=True,
    ),
    Panel(
        "No-op jobs end to end",
        throughput.GROUP,
        [
            ("ours, prefork", "ours, prefork, backlog"),
            ("bare, prefork", "bare, prefork, backlog"),
            ("ours, threads", "ours, threads, backlog"),
            ("bare, threads", "bare, threads, backlog"),
            ("ours, embedded", "ours embedded, backlog"),
        ],
        "jobs/s",
        log=False,
        more_is_better=True,
    ),
    Panel(
        "POST to the first line of the task",
        starts.GROUP,
        [*_each(_WORKERS, ["p50"]), ("delay(), bare Celery, p50", f"{starts.PEER}, p50")],
        "ms",
        log=False,
        aim=starts.AIM_MS,
    ),
    Panel(
        "POST to the news of the end,\nless the job's own time",
        overhead.GROUP,
        _each([*_KINDS, ("polled every 0.5 s", overhead.PEER)], ["p50", "p99"]),
        "ms",
        aim=overhead.AIM_MS,
    ),
    Panel(
        "Many open streams: end in the record\nto the news, p99",
        streams.NEWS,
        [
            *((f"{label}, one job each", f"{name}, one job each, p99") for label, name in _SERVED),
            ("SSE that polls, one job each", f"{streams.PEER}, one job each, p99"),
            *((f"{label}, all on one", f"{name}, all on one job, p99") for label, name in _SERVED),
            ("SSE that polls, all on one", f"{streams.PEER}, all on one job, p99"),
        ],
        "ms",
        aim=streams.AIM_MS,
    ),
    Panel(
        "Idle streams: cores used by 1,000",
        streams.IDLE,
        [
            *((f"{label}, API process", f"{name}: API process") for label, name in _SERVED),
            ("PostgreSQL for it", "ours, prefork: PostgreSQL"),
            ("SSE that polls", f"{streams.PEER}: API process"),
        ],
        "",
        aim=streams.AIM_SECONDS,
    ),
    Panel(
        "Whole list: worst other call meanwhile",
        whole.GROUP,
        [
            *((kind, f"ours, {kind}, {whole.WORST}") for kind in ("PostgreSQL", "SQLite")),
            ("ORM, list[Model]", f"{lists.PEER}, {whole.WORST}"),
        ],
        "ms",
        aim=whole.AIM_MS,
    ),
    Panel(
        "Whole list: growth of the process",
        whole.GROUP,
        [
            *((kind, f"ours, {kind}, {whole.GROWTH}") for kind in ("PostgreSQL", "SQLite")),
            ("ORM, list[Model]", f"{lists.PEER}, {whole.GROWTH}"),
        ],
        "MB",
    ),
    Panel(
        "Memory per finished job",
        memory.GROUP,
        [("API process", "API process, growth"), ("embedded", "embedded service, growth")],
        "bytes",
        log=False,
        aim=memory.AIM_BYTES,
    ),
    Panel(
        "Cancel of a coroutine\nuntil its slot is free",
        cancels.NEXT,
        _each([(label, f"{name}, canceled") for label, name in _KINDS], ["p50", "max"]),
        "ms",
        log=False,
        aim=cancels.AIM_MS,
    ),
    Panel(
        "POST with Prefer: wait, no-op job, p50",
        waits.POST,
        [*_each(_KINDS, ["p50"]), ("delay().get()", f"{waits.PEER}, p50")],
        "ms",
        log=False,
    ),
    Panel(
        "Remote tasks: claim and two reports,\n1, 8 and 40 workers",
        remote.RATE,
        [(f"{label}, {n}", remote.target(name, n)) for label, name in remote.SERVICES for n in remote.WORKERS],
        "tasks/s",
        log=False,
        aim=remote.AIM_RATE,
        more_is_better=True,
    ),
    Panel(
        "50 waiting claims: a submit sent\nto the claim's answer",
        remote_waits.SENT,
        _each([(label, remote_waits.claims(name)) for label, name in remote.SERVICES], ["p50", "p99"]),
        "ms",
        log=False,
        aim=remote_waits.AIM_P99_MS,
    ),
)

_PEERS = (
    *(submits.DELAY, submits.POOL, submits.NOTHING, "bare, "),
    *(starts.PEER, overhead.PEER, streams.PEER, lists.PEER, waits.PEER),
)


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Write the picture; every panel that the figures have something for, and the pages of lists."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")  # of the extra `bench`, which no other work needs
    panels = [(panel, found) for panel in PANELS if (found := _found(panel, figures))]
    pages = _pages(figures)
    count = len(panels) + bool(pages)
    rows = -(-count // _COLUMNS)
    # the same result gives the same file
    settings = {"svg.hashsalt": "celery-jobs", "font.size": 8.5, "hatch.linewidth": 0.5, **_TEXT}
    with pyplot.rc_context(settings):
        drawing, axes = pyplot.subplots(rows, _COLUMNS, figsize=(_WIDTH_INCHES, _ROW_INCHES * rows), squeeze=False)
        places = list(axes.flat)
        for place, (panel, found) in zip(places, panels, strict=False):
            _bars(place, panel, found)
        if pages:
            _lines(places[len(panels)], pages)
        for place in places[count:]:
            place.set_axis_off()
        drawing.tight_layout(h_pad=2.0, w_pad=2.0)
        drawing.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
        pyplot.close(drawing)


def _found(panel: Panel, figures: Sequence[Figure]) -> list[tuple[str, Figure]]:
    pattern = panel.group.replace("{:,}", "*").replace("{}", "*")
    values = {figure.name: figure for figure in figures if fnmatchcase(figure.group, pattern)}
    return [(label, values[name]) for label, name in panel.bars if name in values]


def _bars(place: Any, panel: Panel, found: Sequence[tuple[str, Figure]]) -> None:
    labels = [label for label, _ in found]
    values = [figure.value for _, figure in found]
    theirs = [figure.name.startswith(_PEERS) for _, figure in found]
    bars = place.barh(labels, values, color=[_PEER if peer else _OURS for peer in theirs], edgecolor=_OURS, height=0.65)
    for bar, peer, value in zip(bars, theirs, values, strict=True):
        bar.set_hatch("////" if peer else "")
        where = (max(value, 0.0), bar.get_y() + bar.get_height() / 2)
        place.annotate(number(value), where, (3, 0), textcoords="offset points", va="center")
    place.invert_yaxis()
    furthest = max([*values, panel.aim or 0.0])
    if panel.log and min(values) > 0:
        place.set_xscale("log")
        nearest = min([*values, panel.aim or min(values)])
        place.set_xlim(10.0 ** floor(log10(nearest / 2)), furthest * 4)
        _plain(place.xaxis)
    else:
        place.set_xlim(min(0.0, *values) * 1.2, furthest * 1.25 or 1.0)
    below = f"{panel.unit} ({'more' if panel.more_is_better else 'less'} is better"
    if panel.aim is not None:
        place.axvline(panel.aim, color=_AIM, linestyle="--", linewidth=1.2)
        below += "; dashed: the aim"
    _finish(place, panel.title, f"{below})".strip())


def _plain(axis: Any) -> None:
    """Powers of ten as plain numbers, and nothing between them."""
    ticker: Any = importlib.import_module("matplotlib.ticker")
    axis.set_major_formatter(ticker.FuncFormatter(_tick))
    axis.set_minor_formatter(ticker.NullFormatter())


def _tick(value: float, _place: int) -> str:
    return f"{value:g}" if value < 1000 else f"{value / 1000:g}k" if value < 1e6 else f"{value / 1e6:g}M"


def _pages(figures: Sequence[Figure]) -> dict[str, list[tuple[int, float]]]:
    """For each line its points: jobs in the table, milliseconds."""
    sizes = {"1k": 1_000, "20k": 20_000, "100k": 100_000, "1M": 1_000_000}
    lines = {f"ours, {kind}, {place}": [] for kind in ("PostgreSQL", "SQLite") for place in lists.PLACES[:2]}
    found: dict[str, list[tuple[int, float]]] = {
        **lines,
        **{f"{lists.PEER}, {place}": [] for place in lists.PLACES[:2]},
    }
    for figure in figures:
        line, _, size = figure.name.rpartition(", ")
        if figure.group == lists.GROUP and line in found and size in sizes:
            found[line].append((sizes[size], figure.value))
    return {line: points for line, points in found.items() if points}


def _lines(place: Any, lines: dict[str, list[tuple[int, float]]]) -> None:
    for (name, points), marker in zip(lines.items(), "os^vDX", strict=False):
        peer = name.startswith(lists.PEER)
        style = {"linestyle": "--" if peer else "-", "color": _OURS, "markerfacecolor": _PEER if peer else _OURS}
        place.plot(
            *zip(*points, strict=True), marker=marker, label=name.replace(lists.PEER, "OFFSET"), linewidth=1.0, **style
        )
    place.set_xscale("log")
    place.set_yscale("log")
    values = [value for points in lines.values() for _, value in points]
    place.set_ylim(10.0 ** floor(log10(min(values) / 5)), max(values) * 1.5)  # room below for the legend
    for axis in (place.xaxis, place.yaxis):
        _plain(axis)
    place.legend(fontsize=7, frameon=False, loc="lower left", ncols=2)
    place.set_ylabel("ms")
    _finish(place, "A page of 100 jobs, p50", "jobs in the table")


def _finish(place: Any, title: str, below: str) -> None:
    place.set_title(title, fontsize=9.5, loc="left")
    place.set_xlabel(below)
    for side in ("top", "right"):
        place.spines[side].set_visible(False)
