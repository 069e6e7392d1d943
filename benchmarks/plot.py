"""docs/performance.svg and the tables of docs/performance.md from a result.

.venv/bin/python -m benchmarks.plot [RESULT.json]      (the newest complete one, if none is named)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import chart, page
from benchmarks.figures import Figure
from benchmarks.report import newest_complete

DOCS = Path(__file__).resolve().parents[1] / "docs"


def draw(result: Path | None = None) -> None:
    """Write both; SystemExit with a reason where there is no result."""
    result = result or newest_complete()
    if result is None:
        sys.exit("No complete result in benchmarks/results: `make bench` makes one, or name a result")
    document = json.loads(result.read_text(encoding="utf-8"))
    chart.draw([Figure(**each) for each in document["figures"]], DOCS / "performance.svg")
    text = DOCS / "performance.md"
    text.write_text(page.with_figures(text.read_text(encoding="utf-8"), document), encoding="utf-8")
    print(f"docs/performance.svg and docs/performance.md show {result.name}")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
