"""Names the packages: every folder with Python files below a room of the house is `celery_jobs.<room>[.<folder>]`."""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
ROOMS = ("api", "tasks", "records", "client", "testing", "migrations")


def packages() -> list[str]:
    """Found, not listed, so that no new folder is missing from the wheel."""
    folders = {file.parent for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    return sorted("celery_jobs." + ".".join(folder.relative_to(ROOT).parts) for folder in folders)


setup(
    packages=packages(),
    py_modules=["pytest_celery_jobs"],  # at the top: it says why itself
    package_dir={f"celery_jobs.{room}": room for room in ROOMS},
    package_data={"": ["py.typed", "*.ini", "*.json", "*.mako", "static/**/*"]},
    include_package_data=False,  # otherwise a file's place in the wheel would depend on what git tracks
)
