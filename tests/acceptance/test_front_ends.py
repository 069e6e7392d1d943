"""The pages of docs/front-ends.md in a browser: each is that page's code, at another origin than the service's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import end_jobs
from tests.support import front_ends
from tests.support.chromium import Browser, chromium
from tests.support.metrics import scrape
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.stack import EMBEDDED, Stack
from tests.support.waiting import stays, wait_until

FRONTS = {
    "plain": ("jobs.js", "index.html"),
    "react": ("jobs.js", "JobStatus.jsx", "App.jsx"),
    "vue": ("jobs.js", "JobStatus.vue", "App.vue"),
}
LOST = "The connection is lost; trying again"
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

pytestmark = pytest.mark.xdist_group("front-ends")


class Front:
    """One of the pages, and what a test does with it."""

    def __init__(self, browser: Browser, stack: Stack, proxy: Proxy, address: str) -> None:
        self.browser, self.stack, self.proxy = browser, stack, proxy
        self._address = address

    def open(self, job: str = "") -> Browser:
        """The page, which follows this job; without one it waits for a click."""
        self.browser.open(f"{self._address}#{job}" if job else self._address)
        return self.browser

    def turn_to(self, job: str) -> None:
        """Another job in the page that is open."""
        self.browser.run(f"location.hash = '{job}'")

    def lose_connection(self) -> None:
        self.proxy.refuse()
        self.browser.wait_for(".problem", LOST)

    def streams(self) -> float:
        """How many the service has open."""
        return scrape(self.stack.apis[0].url).sum("sse_streams")


@pytest.fixture(scope="module")
def origin_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def service(start_stack: Callable[..., Stack], origin_port: int) -> Stack:
    return start_stack(EMBEDDED, JOBS_CORS_ORIGINS=f"http://127.0.0.1:{origin_port}")


@pytest.fixture(scope="module")
def proxy(service: Stack) -> Iterator[Proxy]:
    """What the pages take for the service."""
    with Proxy(port_of(service)).serving() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, proxy: Proxy, origin_port: int
) -> Iterator[str]:
    """The address of the folder with all pages."""
    modules = front_ends.packages(request.config.cache.mkdir("front_ends"))
    folder = tmp_path_factory.mktemp("pages")
    for name, files in FRONTS.items():
        written = front_ends.write(folder / name, f"http://127.0.0.1:{proxy.port}", *files)
        if name != "plain":
            front_ends.build(name, written, modules)
    with front_ends.served(folder, origin_port):
        yield f"http://127.0.0.1:{origin_port}"


@pytest.fixture(params=FRONTS)
def front(
    request: pytest.FixtureRequest, browser: Browser, service: Stack, proxy: Proxy, pages: str
) -> Iterator[Front]:
    """Nothing but what the browser says of connections may stand in the console at its end."""
    front = Front(browser, service, proxy, f"{pages}/{request.param}/")
    browser.console()
    yield front
    told = browser.console()
    browser.open("about:blank")
    proxy.refuse()
    proxy.speak()
    proxy.lead_to(port_of(service))
    proxy.accept()
    service.release_all()
    end_jobs(service.jobs)
    assert told == []


only_plain = pytest.mark.parametrize("front", ["plain"], indirect=True)


def port_of(stack: Stack) -> int:
    port = urlsplit(stack.apis[0].url).port
    assert port is not None
    return port


def test_a_job_is_submitted_and_followed_to_its_result(front: Front) -> None:
    front.stack.jobs.change_queue(paused=True)
    page = front.open()
    page.click(".submit")
    page.wait_for(".status", "pending")
    front.stack.jobs.change_queue(paused=False)
    for status in ("running", "completed"):
        page.wait_for(".status", status)
    page.wait_for(".result", "42")
    assert not page.enabled(".cancel")


def test_a_lost_connection_is_survived(front: Front) -> None:
    name = front.stack.name()
    job = front.stack.jobs.submit("stepping", name=name)
    page = front.open(job)
    wait_until(lambda: page.attribute("progress", "value") == "1", "the first step is shown")
    front.lose_connection()
    assert (page.texts(".status"), page.attribute("progress", "value")) == (["running"], "1")
    front.stack.journal.release(f"{name}-1", f"{name}-2")
    wait_until(lambda: front.stack.jobs.record(job)["progress"]["current"] == 3, "the third step")
    front.proxy.accept()
    wait_until(lambda: page.attribute("progress", "value") == "3", "the third step is shown")
    wait_until(lambda: "".join(page.texts(".problem")) == "", "the connection is back")
    front.stack.journal.release(f"{name}-3")
    page.wait_for(".status", "completed")
    page.wait_for(".result", f'"{name}"')


def test_a_running_function_is_canceled(front: Front) -> None:
    name = front.stack.name()
    page = front.open(front.stack.jobs.submit("hold", name=name))
    page.wait_for(".status", "running")
    page.click(".cancel")
    page.wait_for(".status", "canceling")
    assert not page.enabled(".cancel")
    front.stack.journal.release(name)
    page.wait_for(".status", "canceled")


def test_a_failure_a_delete_and_an_unknown_job_are_shown(front: Front) -> None:
    failed, held = front.stack.jobs.submit("raising"), front.stack.jobs.submit("hold", name=front.stack.name())
    page = front.open(failed)
    page.wait_for(".status", "failed")
    page.wait_for(".problem", "ValueError: told to raise")
    front.turn_to(held)
    page.wait_for(".status", "running")
    front.stack.jobs.delete(held)
    page.wait_for(".status", "deleted")
    front.turn_to(UNKNOWN)
    page.wait_for(".problem", f"Job with id {UNKNOWN} not found")
    wait_until(lambda: front.streams() == 0, "no stream is open")


def test_a_refused_cancel_is_shown(front: Front) -> None:
    """The job ends while the page, cut off, still offers to cancel it."""
    name = front.stack.name()
    job = front.stack.jobs.submit("hold", name=name)
    front.proxy.cut()  # the stream's connection shall be the only one, for another would go deaf with it
    page = front.open(job)
    page.wait_for(".status", "running")
    front.proxy.silence()
    front.stack.journal.release(name)
    front.stack.jobs.wait(job, "completed")
    page.click(".cancel")
    front.proxy.deafen()  # the stream stays silent, so the refusal arrives before the news
    front.proxy.speak()
    wait_until(lambda: "".join(page.texts(".problem")), "the refusal is shown")
    page.wait_for(".status", "running")


def test_another_job_in_the_same_place_ends_the_stream_of_the_first(front: Front) -> None:
    first, second = (front.stack.jobs.submit("hold", name=front.stack.name()) for _ in range(2))
    page = front.open(first)
    page.wait_for(".status", "running")
    front.turn_to(second)
    page.wait_for(".status", "running")
    wait_until(lambda: front.streams() == 1, "only the second stream is open")
    front.stack.jobs.cancel(first)
    front.stack.release_all()
    page.wait_for(".status", "completed")
    wait_until(lambda: front.streams() == 0, "no stream is open")


@pytest.mark.parametrize("front", ["react", "vue"], indirect=True)
def test_a_component_that_goes_away_ends_its_stream(front: Front) -> None:
    page = front.open(front.stack.jobs.submit("hold", name=front.stack.name()))
    page.wait_for(".status", "running")
    wait_until(lambda: front.streams() == 1, "the stream is open")
    front.turn_to("none")
    page.wait_for(".status")
    wait_until(lambda: front.streams() == 0, "the stream is closed")


@only_plain
def test_what_happened_while_the_connection_was_lost_is_told_once_and_in_order(front: Front) -> None:
    front.stack.jobs.change_queue(paused=True)
    job = front.stack.jobs.submit("note")
    page = front.open(job)
    page.wait_for(".changes li", "pending")
    front.lose_connection()
    front.stack.jobs.change_queue(paused=False)
    front.stack.jobs.wait(job, "completed")
    front.proxy.accept()
    page.wait_for(".changes li", "pending", "running", "completed")
    page.wait_for(".result", '""')


@only_plain
def test_a_restart_of_the_service_is_survived(front: Front) -> None:
    stack = front.stack
    stack.jobs.change_queue(paused=True)
    page = front.open(stack.jobs.submit("note"))
    page.wait_for(".changes li", "pending")
    port = port_of(stack)
    stack.process.terminate()
    page.wait_for(".problem", LOST)
    assert stack.process.wait() == 0
    stack.apis[0] = stack.service.up("--concurrency", str(stack.slots), port=port)
    wait_until(lambda: front.streams() == 1, "the page is back")
    page.wait_for(".problem", "")
    stack.jobs.change_queue(paused=False)
    page.wait_for(".changes li", "pending", "running", "completed")


class BadGateway(BaseHTTPRequestHandler):
    """What a proxy says while the service behind it is away."""

    asked = 0

    def do_GET(self) -> None:
        BadGateway.asked += 1
        self.send_response(502)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@only_plain
def test_an_answer_that_makes_the_browser_give_up_is_survived_and_a_delete_meanwhile_is_told(front: Front) -> None:
    jobs, proxy = front.stack.jobs, front.proxy
    held = jobs.submit("hold", name=front.stack.name())
    jobs.wait(held, "running")
    page = front.open(held)
    page.wait_for(".changes li", "running")
    with HTTPServer(("127.0.0.1", 0), BadGateway) as gateway:
        Thread(target=gateway.serve_forever, daemon=True).start()
        proxy.lead_to(gateway.server_port)
        proxy.cut()
        wait_until(lambda: BadGateway.asked >= 2, "the stream is refused, and the page asks why")
        proxy.lead_to(port_of(front.stack))
        gateway.shutdown()
    page.wait_for(".problem", "")
    wait_until(lambda: front.streams() == 1, "the page is back")
    stays(lambda: page.texts(".changes li") == ["running"], "nothing is told twice", 0.5)
    proxy.refuse()
    page.wait_for(".problem", LOST)
    jobs.delete(held)
    proxy.accept()
    page.wait_for(".changes li", "running", "deleted")
    page.wait_for(".problem", "")


def test_the_page_has_no_block_that_is_not_run() -> None:
    scripts = {"short.sh", "follow.sh", "cancel.sh", "follow.py", "wait_async.py", "generate.sh", "use_client.py"}
    assert set(front_ends.blocks()) == scripts | {name for names in FRONTS.values() for name in names}
