"""Every folder of the house is in the wheel under its name, and the bare install is the SDK."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "tasks", "records", "client", "testing", "migrations")
PLUGIN = "pytest_celery_jobs.py"
DATA = (".html", ".css", ".js", ".svg", ".ico", ".mako", ".ini", ".json", ".typed")


def shipped_files() -> set[str]:
    """What the folders hold, under the names that it must have in the wheel."""
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*") if file.is_file()]
    wanted = [file for file in files if file.suffix in (".py", *DATA) or file.name in DATA]
    return {f"celery_jobs/{file.relative_to(ROOT).as_posix()}" for file in wanted if "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, without a network: the build must leave nothing in the checkout."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in [*ROOMS, PLUGIN, "setup.py", "pyproject.toml", "LICENSE"]:
        subprocess.run(["cp", "-R", ROOT / name, source], check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", built, source]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return zipfile.ZipFile(next(built.glob("*.whl")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """The wheel's METADATA."""
    return Parser().parsestr(wheel.read("celery_jobs-0.1.0.dist-info/METADATA").decode())


def test_wheel_holds_every_file_of_the_house(wheel: zipfile.ZipFile) -> None:
    assert shipped_files() - set(wheel.namelist()) == set()


def test_wheel_holds_nothing_beside_celery_jobs_and_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"celery_jobs", "celery_jobs-0.1.0.dist-info", PLUGIN}


def test_celery_jobs_is_a_namespace_that_nobody_owns(wheel: zipfile.ZipFile) -> None:
    assert "celery_jobs/__init__.py" not in wheel.namelist()


def test_wheel_has_license_and_command(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "celery_jobs-0.1.0.dist-info/licenses/LICENSE" in wheel.namelist()
    commands = wheel.read("celery_jobs-0.1.0.dist-info/entry_points.txt").decode()
    assert "celery-jobs = celery_jobs.api.cli:main" in commands


def test_pytest_leaves_the_users_modules_of_our_folders_names_alone(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """It rewrites the assertions of what a plugin's distribution has at its top, and warns where that is loaded."""
    installed, user = tmp_path / "installed", tmp_path / "user"
    wheel.extractall(installed)
    user.mkdir()
    for room in ROOMS:
        (user / f"{room}.py").touch()
    (user / "test_plugin.py").write_text(
        "def test_plugin(pytestconfig):\n    assert pytestconfig.pluginmanager.has_plugin('celery_jobs')\n"
    )
    code = f"import sys; sys.path[:0] = [{str(user)!r}, {str(installed)!r}]; import {', '.join(ROOMS)}, pytest; "
    code += "sys.exit(pytest.main(['-W', 'error::pytest.PytestAssertRewriteWarning', '-p', 'no:cacheprovider']))"
    told = subprocess.run([sys.executable, "-c", code], cwd=user, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_bare_install_needs_httpx_and_pydantic_only(metadata: Message) -> None:
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]
    assert {each.name for each in needed if each.marker is None} == {"httpx", "pydantic"}


def test_sdk_loads_nothing_of_the_server() -> None:
    server = "{'alembic', 'celery', 'fastapi', 'kombu', 'sqlalchemy', 'starlette'}"
    code = f"import sys, celery_jobs.client; print(sorted({server} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_sdk_works_where_only_httpx_and_pydantic_are(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    installed = [distribution(name) for name in needed_by("httpx", "pydantic")]
    tops = {file.parts[0]: each.locate_file(file.parts[0]) for each in installed for file in each.files or []}
    for top, place in tops.items():
        if top not in ("..", "__pycache__"):
            (tmp_path / top).symlink_to(str(place))
    start = f"import sys; sys.path.append({str(tmp_path)!r}); "
    uses = "from celery_jobs.client import JobManager; print(len(JobManager('http://127.0.0.1:9')))"
    command = "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('celery_jobs.client', run_name='__main__')"
    server = "import celery_jobs.records.engine"
    assert alone(start + uses).stdout == "0\n"
    assert "JOBS_URL" in alone(start + command).stdout
    assert "No module named 'sqlalchemy'" in alone(start + server).stderr


def alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run without this environment's packages."""
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)


def needed_by(*names: str) -> set[str]:
    """The distributions and what they need, without extras."""
    found: set[str] = set()
    left = list(names)
    while left:
        found.add(name := left.pop())
        needed = map(Requirement, distribution(name).requires or [])
        left += [
            each.name
            for each in needed
            if each.name not in found and (not each.marker or each.marker.evaluate({"extra": ""}))
        ]
    return found


def test_every_dependency_is_pinned_by_plain_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all([spec.operator for spec in pin.specifier] == ["=="] and pin.url is None for pin in pins)
    pinned = {pin.name.lower().replace("_", "-") for pin in pins} | {"celery-jobs"}
    assert {Requirement(text).name.lower().replace("_", "-") for text in requires("celery-jobs") or []} <= pinned
