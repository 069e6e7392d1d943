"""Scraping as Prometheus does, and asking what came."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.processes import Process
from tests.support.stack import Stack
from tests.support.waiting import wait_until

SERVED_AT = "Serving metrics on "

RAN = "job_duration_seconds_count"
WAITED = "job_queue_wait_seconds_count"
CANCELED = "job_cancel_seconds_count"
SUBMITTED = "jobs_submitted_total"


class Scrape:
    """One answer of a `/metrics`."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.text
        self.families = list(text_string_to_metric_families(answer.text))
        self.samples: list[Sample] = [sample for family in self.families for sample in family.samples]

    def of(self, name: str, **labels: str) -> list[Sample]:
        """The samples of this name that have these labels."""
        return [each for each in self.samples if each.name == name and labels.items() <= each.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        """Their values added up; 0 where there is none."""
        return sum(each.value for each in self.of(name, **labels))

    def names(self) -> set[str]:
        """What the families are called."""
        return {family.name for family in self.families}


def scrape(url: str) -> Scrape:
    """On a connection of its own, so that any process behind the port may answer."""
    return Scrape(httpx.get(f"{url}/metrics", timeout=10))


def port_of(worker: Process) -> str:
    """Where a worker says that it serves its metrics."""
    worker.wait_for_log(SERVED_AT)
    return worker.log.partition(SERVED_AT)[2].partition("/metrics")[0]


def folder_of(process: Process) -> Path:
    """The folder in which the children of this process count, once one of them has."""

    def found() -> Path | None:
        maps = [Path(each.path) for child in process.children() for each in child.memory_maps()]
        return next((file.parent for file in maps if file.parent.name.startswith("celery-jobs-metrics-")), None)

    folder = wait_until(found, f"the children of {process.name} count in a folder", ignore=psutil.Error)
    assert folder is not None
    return folder


@contextmanager
def fresh_client(url: str) -> Generator[httpx.Client]:
    """A client that nobody has connected yet."""
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


def scrape_of(stack: Stack) -> Scrape:
    """What the first API process answers."""
    return scrape(stack.apis[0].url)


def run(stack: Stack, task: str, count: int, **arguments: Any) -> list[str]:
    """Jobs that have all completed."""
    jobs = [stack.jobs.submit(task, **arguments) for _ in range(count)]
    for job in jobs:
        stack.jobs.wait(job, "completed")
    return jobs


def busy(stack: Stack, count: int) -> tuple[list[str], list[str]]:
    """Jobs that are in their code, and the names that release them."""
    names = [stack.name() for _ in range(count)]
    jobs = [stack.jobs.submit("hold", name=name) for name in names]
    for job in jobs:
        stack.journal.wait_start(job)
    return jobs, names
