"""The report of a run: the table on the screen and the JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, number

RESULTS = Path(__file__).with_name("results")
_PACKAGES = ("celery", "fastapi", "uvicorn", "uvloop", "httptools", "sqlalchemy", "psycopg", "redis", "kombu")


@dataclass
class Report:
    """What a run found; `complete` once every part was measured at full length."""

    quick: bool
    load_before: float
    notes: list[str]
    figures: list[Figure] = field(default_factory=list)
    complete: bool = False

    def add(self, figures: Sequence[Figure], notes: Sequence[str]) -> None:
        """What one part found; a group stays together."""
        groups = list(dict.fromkeys(figure.group for figure in figures))
        self.figures += sorted(figures, key=lambda figure: groups.index(figure.group))
        self.notes += notes

    def show(self) -> None:
        """The table."""
        table = Table(title="celery-jobs beside bare Celery and bare FastAPI", title_justify="left")
        for heading in ("measured", "value", "cpu ms", "ratio", "to", "aim", ""):
            table.add_column(heading, justify="right" if heading in ("value", "cpu ms", "ratio") else "left")
        group = None
        for figure in self.figures:
            if figure.group != group:
                group = figure.group
                table.add_section()
                table.add_row(f"[bold]{group}[/bold]")
            table.add_row(*_cells(figure))
        console = Console(width=None if Console().is_terminal else 170)
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}", highlight=False)

    def save(self) -> Path:
        """Write it to benchmarks/results; nothing in it names the machine or a folder."""
        now = datetime.now(UTC)
        document = {
            "measured_at": now.isoformat(timespec="seconds"),
            "quick": self.quick,
            "complete": self.complete,
            "cores": os.cpu_count(),
            "load_before": self.load_before,
            "python": platform.python_version(),
            "packages": {name: version(name) for name in _PACKAGES},
            "figures": [asdict(figure) for figure in self.figures],
            "notes": self.notes,
        }
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{now:%Y-%m-%dT%H%M%S}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return path


def _cells(figure: Figure) -> list[str]:
    met = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}[figure.met]
    return [
        f"  {figure.name}",
        f"{number(figure.value)} {figure.unit}",
        "" if figure.cpu_ms is None else f"{figure.cpu_ms:.2f}",
        "" if figure.ratio is None else f"{figure.ratio:.2f} x",
        figure.peer or "",
        figure.aim or "",
        met,
    ]


def newest_complete() -> Path | None:
    """The newest result of a full run with every part."""
    files = sorted(RESULTS.glob("*.json"), reverse=True)
    return next((file for file in files if json.loads(file.read_text("utf-8")).get("complete")), None)
