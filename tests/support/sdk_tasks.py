"""Classes that the tests' remote workers serve; written into the folder where a worker runs, as a user's own module."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from celery_jobs.client import register


@register
class Double(BaseModel):
    """Says twice the number."""

    number: int = 1

    def run(self) -> int:
        with Path("runs.txt").open("a") as runs:
            runs.write(f"{self.number}\n")
        return 2 * self.number


@register(room="room_1")
class Hold(BaseModel):
    """Runs until the file `<name>.go` is there; `<name>.began` tells that it runs."""

    category: ClassVar[str] = "analysis"
    name: str

    def run(self) -> str:
        Path(f"{self.name}.began").touch()
        while not Path(f"{self.name}.go").exists():
            time.sleep(0.02)
        return self.name
