"""Pages of 100 out of a small, a large and a very large table, and the whole of the large one."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlencode, urlsplit

from benchmarks.clients.wire import Connection, body_of, header, request_bytes, status_of
from benchmarks.figures import Figure, Measured, compared
from benchmarks.parts.whole import Listed, of_ours, of_peer, whole_lists
from benchmarks.plan import Plan
from benchmarks.stand.fill import AGE, fill, number_of
from benchmarks.stand.peers import Bare, Endpoints
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers

GROUP = "a page of 100 jobs, p50"
PEER = "SQLAlchemy with OFFSET"
PLACES = ("first", "middle", "first failed")
AIM_RATIO = 1.3
_LIMIT = 100
_WARM_UP = 3
_LINK = re.compile(r'<([^>]+)>; rel="next"')


def label(size: int) -> str:
    """1k, 100k, 1M."""
    return f"{size // 1_000_000}M" if size >= 1_000_000 else f"{size // 1000}k"


def measure(bench: Bench, plan: Plan) -> Measured:
    """On PostgreSQL with the peer beside it, and on SQLite."""
    pages: list[Figure] = []
    whole: list[Figure] = []
    notes = [
        "The tables of the lists are filled by SQL. PostgreSQL then runs VACUUM ANALYZE, as its autovacuum does within "
        "a minute; SQLite runs nothing. No job runs, so that nothing but the list keeps the other calls waiting.",
    ]
    for kind in ("PostgreSQL", "SQLite"):
        with ExitStack() as stack:
            service = ours_on_servers if kind == "PostgreSQL" else ours_embedded
            services = {size: stack.enter_context(_filled(service(bench), size)) for size in plan.sizes}
            peers = _peers(stack, bench, services) if kind == "PostgreSQL" else {}
            pages += _pages(stack, kind, services, peers, plan.pages)
            large = services[plan.whole]
            listed: list[Listed] = [of_ours(f"ours, {kind}", large)]
            if peers:
                listed.append(of_peer(PEER, peers[plan.whole], large))
            found, said = whole_lists(listed, plan, label(plan.whole))
            whole += found
            notes += said
    return [*_large_beside_small(pages, plan), *whole], notes


@contextmanager
def _filled(service: AbstractContextManager[Ours], size: int) -> Generator[Ours]:
    with service as ours:
        ours.pause()
        fill(ours.records, size)
        yield ours


def _peers(stack: ExitStack, bench: Bench, services: dict[int, Ours]) -> dict[int, Endpoints]:
    """One for each table, since its database is a setting of the process."""
    bare = [(size, Bare(bench, backend=True, database=ours.env["DATABASE_URL"])) for size, ours in services.items()]
    return {size: stack.enter_context(each.http("listing")) for size, each in bare}


class _Page:
    """One that is asked for again and again."""

    def __init__(self, port: int, path: str, begins_at: int | None = None) -> None:
        self.connection = Connection(port)
        self._request = request_bytes(port, path, "", "GET")
        jobs = json.loads(body_of(self._asked()))
        if len(jobs) != _LIMIT:
            raise AssertionError(f"GET {path} has {len(jobs)} jobs")
        if begins_at is not None and abs(number_of(jobs[0]["id"]) - begins_at) > 2 * _LIMIT:
            raise AssertionError(f"GET {path} begins with {jobs[0]['id']} and not with job {begins_at}")
        self.times: list[float] = []

    def ask(self) -> None:
        """Once more."""
        self.connection.fresh()
        began = time.perf_counter()
        self._asked()
        self.times.append((time.perf_counter() - began) * 1e3)

    def _asked(self) -> bytes:
        data = self.connection.answer(self._request)
        if status_of(data) != 200:
            raise AssertionError(f"a page was answered {status_of(data)}: {body_of(data)[:500].decode()}")
        return data


def _pages(
    stack: ExitStack, kind: str, services: dict[int, Ours], peers: dict[int, Endpoints], count: int
) -> list[Figure]:
    """Every page in turn, so that other load on the machine hits them alike."""
    pages: dict[str, _Page] = {}

    def add(who: str, port: int, size: int, first: str, middle: str, failed: str) -> None:
        for place, path in zip(PLACES, (first, middle, failed), strict=True):
            pages[f"{who}, {place}, {label(size)}"] = _Page(port, path, size // 2 if path == middle else None)

    for size, ours in services.items():
        first = f"/api/v1/jobs?limit={_LIMIT}"
        add(f"ours, {kind}", ours.port, size, first, _middle(ours.port, size), f"{first}&status_filter=failed")
    for size, peer in peers.items():
        first = f"/jobs?limit={_LIMIT}"
        add(PEER, peer.port, size, first, f"{first}&offset={size // 2}", f"{first}&status=failed")
    for page in pages.values():
        stack.callback(page.connection.close)
    for _ in range(count + _WARM_UP):
        for page in pages.values():
            page.ask()
    return [Figure(GROUP, name, statistics.median(page.times[_WARM_UP:]), "ms") for name, page in pages.items()]


def _middle(port: int, size: int) -> str:
    """The path of a page in the middle of the table, with a cursor that the service itself gave."""
    before = datetime.now(UTC) - AGE + timedelta(seconds=size / 2)
    path = f"/api/v1/jobs?{urlencode({'limit': _LIMIT, 'submitted_before': before.isoformat()})}"
    connection = Connection(port)
    try:
        while True:
            data = connection.answer(request_bytes(port, path, "", "GET"))
            link = _LINK.search((header(data, b"link") or b"").decode())
            if link is None:
                raise AssertionError(f"GET {path} names no next page")
            path = link[1]
            if body_of(data) != b"[]":  # a page may be empty where a filter fits none of the newest jobs
                break
    finally:
        connection.close()
    return f"/api/v1/jobs?limit={_LIMIT}&cursor={parse_qs(urlsplit(path).query)['cursor'][0]}"


def _large_beside_small(figures: list[Figure], plan: Plan) -> list[Figure]:
    small, large = label(min(plan.sizes)), label(max(plan.sizes))
    for who in ("ours, PostgreSQL", "ours, SQLite", PEER):
        for place in PLACES:
            aim = None if who == PEER else AIM_RATIO
            figures = compared(figures, f"{who}, {place}, {large}", f"{who}, {place}, {small}", at_most=aim)
    return figures
