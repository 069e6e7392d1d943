"""The tables of docs/performance.md: written between two comments, the words around them are people's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.figures import Figure, number

BEGIN = "<!-- figures: written by `python -m benchmarks.plot`, edits here are lost -->"
END = "<!-- figures: end -->"
_HEAD = "| measured | value | ratio | to | aim | |\n|---|--:|--:|---|---|---|"


def with_figures(page: str, document: Mapping[str, Any]) -> str:
    """The page with the tables of this result in their place; ValueError when the page has no such place."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError("the page must hold the two comments between which the figures go, once and in order")
    before, after = page[: page.index(BEGIN)], page[page.index(END) :]
    return f"{before}{BEGIN}\n\n{chr(10).join(_lines(document))}\n{after}"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    figures = [Figure(**each) for each in document["figures"]]
    packages = ", ".join(f"{name} {version}" for name, version in document["packages"].items())
    how = "A quick run (small sizes, which the aims are not about)" if document["quick"] else "A full run"
    load = f"load before {document['load_before']:.1f}"
    yield f"{how}, {document['measured_at'][:10]}: {document['cores']} cores, {load},"
    yield f"Python {document['python']}, {packages}."
    yield ""
    yield from _aims(figures)
    for group in dict.fromkeys(figure.group for figure in figures):
        yield f"### {group[0].upper()}{group[1:]}"
        yield ""
        yield _HEAD
        yield from (_row(figure, figure.name) for figure in figures if figure.group == group)
        yield ""
    yield "<details><summary>Notes of the run, with the statements that were counted</summary>"
    yield ""
    yield from (f"- {note}" for note in document["notes"])
    yield ""
    yield "</details>"
    yield ""


def _aims(figures: Sequence[Figure]) -> Iterator[str]:
    aimed = [figure for figure in figures if figure.met is not None]
    missed = [figure for figure in aimed if not figure.met]
    yield f"{len(aimed) - len(missed)} of {len(aimed)} aims are met." + (" Missed:" if missed else "")
    yield ""
    if missed:
        yield _HEAD
        yield from (_row(figure, f"{figure.group}: {figure.name}") for figure in missed)
        yield ""


def _row(figure: Figure, name: str) -> str:
    ratio = "" if figure.ratio is None else f"{number(figure.ratio)} x"
    met = {None: "", True: "met", False: "**missed**"}[figure.met]
    aim = (figure.aim or "").replace("<=", "≤").replace(">=", "≥")
    return f"| {name} | {number(figure.value)} {figure.unit} | {ratio} | {figure.peer or ''} | {aim} | {met} |"
