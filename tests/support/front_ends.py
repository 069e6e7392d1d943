"""The blocks of docs/front-ends.md as files, and its pages as a web server delivers them."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.support.programs import absent, program

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "front-ends.md"
SERVICE = "http://127.0.0.1:8000"  # as the page spells it
SOURCES = ROOT / "tests" / "front_ends"
NPM_SECONDS = 120


def blocks() -> dict[str, str]:
    """Every fenced block by the name that stands behind its language; one without a name is an error."""
    found = re.findall(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert all(name for _, name, _ in found), "a block has no name, so no test runs it"
    named = {name: text for _, name, text in found}
    assert len(named) == len(found), "two blocks have one name"
    return named


def write(folder: Path, service: str, *names: str) -> Path:
    """These blocks as files that talk to this service; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = blocks()
    for name in names:
        (folder / name).write_text(found[name].replace(SERVICE, service), encoding="utf-8")
    return folder


def packages(cache: Path) -> Path:
    """The folder with the npm packages of package.json, loaded once for all runs of the tests."""
    npm, wanted = program("npm", "npm"), (SOURCES / "package.json").read_bytes()
    folder = cache / hashlib.sha256(wanted).hexdigest()[:12]
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=cache))
        (new / "package.json").write_bytes(wanted)
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(command, cwd=new, capture_output=True, text=True, timeout=NPM_SECONDS, check=False)
        if done.returncode:
            absent(f"npm cannot install React and Vue: {done.stderr[-2000:]}")
        try:
            new.rename(folder)
        except OSError:  # another process of the tests was faster
            shutil.rmtree(new)
    return folder


def build(framework: str, folder: Path, modules: Path) -> None:
    """`app.js` and a page for it, from the components in the folder and the framework's entry file."""
    node = program("node", "nodejs")
    shutil.copy(SOURCES / f"{framework}.js", folder)
    shutil.copy(SOURCES / "build.mjs", folder)
    shutil.copy(SOURCES / "page.html", folder / "index.html")
    (folder / "node_modules").symlink_to(modules / "node_modules", target_is_directory=True)
    command = [node, "build.mjs", f"{framework}.js"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"the examples compile with warnings: {done.stderr}"


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the browser tells what it misses."""


@contextmanager
def served(folder: Path, port: int) -> Generator[None]:
    """The files in the folder, on this port of 127.0.0.1."""
    with ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
