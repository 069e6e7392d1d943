"""`python -m celery_jobs.client` says why it cannot start, and exits with 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_jobs.client.__main__ import main
from celery_jobs.client.offered import OFFERED
from tests.unit.test_client_offers import Rotate


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "celery_jobs.client", *arguments]
    return subprocess.run(program, capture_output=True, text=True, cwd=cwd, timeout=30, check=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "usage:"),
        (("no_such_module_anywhere",), "cannot be imported: ModuleNotFoundError"),
        (("broken",), "broken cannot be imported: ZeroDivisionError"),
        (("bare",), "bare offers no classes: decorate them with @celery_jobs.client.register, or name them as in"),
        (("bare:Missing",), "bare:Missing is not there, or no class that extends pydantic.BaseModel"),
        (("bare:NUMBER",), "bare:NUMBER is not there, or no class that extends pydantic.BaseModel"),
        (("bare:Rotate", "--url", "nowhere"), "'nowhere' is no URL of a server"),
        (("bare:Rotate", "--heartbeat-interval", "0"), "--heartbeat-interval"),
    ],
)
def test_a_command_that_cannot_start_says_why(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    source = "from pydantic import BaseModel\nNUMBER = 3\nclass Rotate(BaseModel):\n    angle: float = 0\n"
    (tmp_path / "bare.py").write_text(source)
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_without_a_server_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("celery_jobs.client.jobs.CALL_PATIENCE_SECONDS", 0.5)
    monkeypatch.setitem(OFFERED, Rotate, None)
    assert main(["json", "--url", "http://127.0.0.1:9"]) == 2
    assert "cannot start: http://127.0.0.1:9:" in capsys.readouterr().err


def test_help_tells_convention_and_exit_codes(tmp_path: Path) -> None:
    done = command("--help", cwd=tmp_path)
    assert done.returncode == 0
    told: dict[str, Any] = {
        word: word in done.stdout for word in ("celery_jobs.client.register", "JOBS_URL", "Exit codes")
    }
    assert all(told.values()), told
