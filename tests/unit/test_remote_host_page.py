"""docs/remote-host.md shows the example as it is."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_blocks_of_the_page_are_parts_of_the_example() -> None:
    page = (ROOT / "docs" / "remote-host.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "remote_host" / "main.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    of_the_host = [block for block in blocks if "celery_jobs.records.tables" not in block]  # an env.py of Alembic's
    assert len(of_the_host) == len(blocks) - 1 == 7
    lines = textwrap.dedent(example).splitlines()
    stripped = "\n".join(line.strip() for line in lines)
    for block in of_the_host:
        assert "\n".join(line.strip() for line in block.strip().splitlines()) in stripped
