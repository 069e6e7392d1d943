"""Programs that tests need and this project does not bring: without one a test is skipped, in CI it fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def program(name: str, package: str) -> Path:
    """Where it is; without it the test is skipped, and fails in CI."""
    found = shutil.which(name)
    return Path(found) if found else absent(f"{name} is missing; on Debian: apt-get install {package}")


def absent(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
