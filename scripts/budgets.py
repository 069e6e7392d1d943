"""Fails when a file is longer than 300 lines or a function longer than 40, decorators apart.

Exceptions stand by name in pyproject.toml, `[tool.celery_jobs.budgets]`, and may only shrink.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("api", "tasks", "records", "client", "testing", "migrations", "benchmarks", "tests", "scripts", "examples")
FILE_LINES = 300
FUNCTION_LINES = 40


def git(*args: str) -> str | None:
    """The output of a git command, or None where it fails (no such commit, no repository)."""
    run = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout if run.returncode == 0 else None


def python_files() -> list[Path]:
    """Every tracked or new Python file, but not what .gitignore leaves out."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *FOLDERS)
    if listed is None:  # an unpacked archive has no index
        return sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return sorted(ROOT / name for name in set(listed.split("\0")) if name.endswith(".py") and (ROOT / name).is_file())


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Qualified name and lines of each function, nested ones too."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and not isinstance(child, ast.ClassDef):
            yield prefix + child.name, (child.end_lineno or child.lineno) - child.lineno + 1
        yield from functions(child, f"{prefix}{child.name}." if named else prefix)


def oversized(file: Path, name: str) -> Iterator[tuple[str, int]]:
    """The file and its functions that are over budget, with their lines."""
    source = file.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield name, lines
    for function, length in functions(ast.parse(source, name)):
        if length > FUNCTION_LINES:
            yield f"{name}::{function}", length


def exceptions(pyproject: str | None) -> dict[str, int] | None:
    """The list in the text of a pyproject.toml; None when there is no such text."""
    if pyproject is None:
        return None
    return tomllib.loads(pyproject).get("tool", {}).get("celery_jobs", {}).get("budgets", {})


def judge(found: dict[str, int], allowed: dict[str, int], before: dict[str, int] | None) -> list[str]:
    """One sentence per fault; `before` is the list of the last commit, where there is one."""
    faults = [
        f"{name}: {lines} lines, {allowed.get(name, FUNCTION_LINES if '::' in name else FILE_LINES)} allowed"
        for name, lines in found.items()
        if lines > allowed.get(name, 0)
    ]
    for name, limit in allowed.items():
        if (needed := found.get(name, 0)) < limit:
            faults.append(f"{name}: the exception says {limit}, needed is {needed or 'none'}: lower or remove it")
        if before is not None and limit > before.get(name, 0):
            faults.append(f"{name}: the list of exceptions may only shrink")
    return faults


def main() -> int:
    """Exit status 1 and a line per fault, else 0."""
    found = dict(item for file in python_files() for item in oversized(file, file.relative_to(ROOT).as_posix()))
    now = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    committed = git("show", "HEAD:pyproject.toml")
    before = git("show", "HEAD^:pyproject.toml") if committed == now else committed
    faults = judge(found, exceptions(now) or {}, exceptions(before))
    print("\n".join(faults) or "Budgets: every file and function is within its lines")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
