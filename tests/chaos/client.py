"""The clients of a storm: they submit, follow, cancel and delete, and repeat what was not answered, as real ones do."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from tests.chaos.story import TERMINAL, Story, Told, plan

TICK_SECONDS = 0.2
SILENCE_SECONDS = 25.0  # a comment is due every 15
PAUSES_SECONDS = (0.2, 0.4, 0.8, 1.6)  # between tries; the last one again and again
MOST_AT_ONCE = 120  # clients; more wait outside, or those of an outage would be a flood after it


class Clients:
    """Everybody who uses the service during one storm, on one event loop."""

    def __init__(
        self, urls: Sequence[str], seed: int, *, keys: bool, answer_seconds: float, excused: Callable[[float], bool]
    ) -> None:
        self._urls = list(urls)
        self._answer_seconds = answer_seconds
        self._excused = excused  # whether a server stood still since then, so that it could not answer
        self._seed = seed
        self._keys = keys
        self._dice = random.Random(seed)
        self._calm = asyncio.Event()  # nobody gives up before the faults have ended
        self.stories: list[Story] = []
        self.faults: Counter[str] = Counter()  # what no fault of a server excuses
        self.examples: list[str] = []
        self._running: set[asyncio.Task[None]] = set()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(20.0, connect=5.0), limits=limits)

    async def blow(self, seconds: float, per_second: float) -> None:
        """Submit at this rate for so long."""
        began, due = time.monotonic(), 0.0
        while time.monotonic() - began < seconds:
            due += per_second * TICK_SECONDS
            while due >= 1 and len(self._running) < MOST_AT_ONCE:
                due -= 1
                story = Story(plan(self._seed, len(self.stories)), time.time())
                self.stories.append(story)
                self._begin(self._live(story))
            due = min(due, 1.0)
            if len(self._running) < MOST_AT_ONCE:
                self._begin(self._look())
            await asyncio.sleep(TICK_SECONDS)

    async def settle(self, seconds: float) -> None:
        """Let every client come to its end; who does not within `seconds` is cut off."""
        self._calm.set()
        if self._running:
            _done, left = await asyncio.wait(self._running, timeout=seconds)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def read_all(self) -> None:
        """What the service says of each job now."""
        gate = asyncio.Semaphore(8)

        async def read(story: Story) -> None:
            async with gate:
                answer = await self._call("GET", f"/api/v1/jobs/{story.id}")
            if answer.status_code == 200:
                story.final = answer.json()
                story.see(answer.json(), time.time())

        await asyncio.gather(*(read(story) for story in self.stories if story.id))

    async def records(self) -> list[dict[str, Any]]:
        """The whole list, for a service that has one."""
        answer = await self._call("GET", "/api/v1/jobs")
        return answer.json()

    async def close(self) -> None:
        await self._client.aclose()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One call, repeated at another process while it is not answered."""
        for attempt in itertools.count():
            url = self._dice.choice(self._urls)
            began = time.time()
            try:
                answer = await self._client.request(method, url + path, **options)
            except httpx.ReadTimeout:
                self._late(method, path, began)
            except httpx.TransportError:
                pass  # killed, or on its way up
            else:
                if time.time() - began > self._answer_seconds:
                    self._late(method, path, began)
                if answer.status_code < 500:
                    return answer
                if answer.status_code != 503:
                    self.faults["server errors"] += 1
                elif "retry-after" not in answer.headers:
                    self.faults["503 without Retry-After"] += 1
            await asyncio.sleep(PAUSES_SECONDS[min(attempt, len(PAUSES_SECONDS) - 1)])
        raise AssertionError("unreachable")

    def _late(self, method: str, path: str, began: float) -> None:
        if not self._excused(began):
            self.faults["calls without an answer"] += 1
            self.examples.append(f"{method} {path}: asked at {began:.1f}, no answer for {time.time() - began:.1f} s")

    async def _live(self, story: Story) -> None:
        await self._submit(story)
        follower = asyncio.ensure_future(self._follow(story)) if story.plan.follows else None
        try:
            await asyncio.sleep(story.plan.after)
            if story.plan.then == "cancel":
                await self._cancel(story)
            elif story.plan.then == "delete":
                await self._delete(story)
            if follower is not None:
                await follower
        finally:
            if follower is not None:
                follower.cancel()

    async def _submit(self, story: Story) -> None:
        headers = {"Idempotency-Key": story.plan.key} if self._keys else {}
        body = {"mark": story.plan.key, "seconds": story.plan.seconds}
        path = f"/api/v1/tasks/storm.{story.plan.task}?tag={story.plan.key}"
        answer = await self._call("POST", path, json=body, headers=headers)
        if answer.status_code != 202:
            self.faults["submits refused"] += 1
            return
        story.ids.add(answer.json()["job_id"])
        if self._keys and self._dice.random() < 0.1:  # a client that did not hear the answer
            answer = await self._call("POST", path, json=body, headers=headers)
            if answer.status_code == 202:
                story.ids.add(answer.json()["job_id"])

    async def _cancel(self, story: Story) -> None:
        story.canceled_at = time.time()
        answer = await self._call("POST", f"/api/v1/jobs/{story.id}/$cancel")
        if answer.status_code == 202:
            story.cancel_told = Told(time.time(), answer.json()["status"])
            story.see(answer.json(), time.time())
        elif answer.status_code != 409:
            self.faults[f"cancels answered {answer.status_code}"] += 1

    async def _delete(self, story: Story) -> None:
        story.canceled_at, story.delete_asked = time.time(), True
        answer = await self._call("DELETE", f"/api/v1/jobs/{story.id}")
        # 404: an earlier try was carried out and its answer lost
        story.deleted = answer.status_code in (204, 404)

    async def _look(self) -> None:
        """Somebody looks at a job that was told before: a terminal state may never change."""
        known = [story for story in self.stories if story.id and not story.delete_asked]
        if not known:
            return
        story = self._dice.choice(known)
        answer = await self._call("GET", f"/api/v1/jobs/{story.id}")
        if story.delete_asked:
            return
        if answer.status_code == 200:
            story.see(answer.json(), time.time())
        else:
            self.faults[f"accepted jobs answered {answer.status_code}"] += 1

    async def _follow(self, story: Story) -> None:
        """As EventSource does: opened again with the last id until a terminal event has come."""
        story.stream = "open"
        for attempt in itertools.count():
            last = story.events[-1].event_id if story.events else None
            headers = {"Last-Event-ID": last} if last else {}
            url = f"{self._dice.choice(self._urls)}/api/v1/jobs/{story.id}/$stream"
            try:
                wait = httpx.Timeout(10.0, read=SILENCE_SECONDS)
                async with self._client.stream("GET", url, headers=headers, timeout=wait) as answer:
                    if answer.status_code in (204, 404):
                        story.stream = "gone"
                        return
                    if answer.status_code == 200 and await self._read(story, answer):
                        story.stream = "ended"
                        return
            except httpx.ReadTimeout:
                story.silences += 1
            except httpx.TransportError:
                pass
            await asyncio.sleep(PAUSES_SECONDS[min(attempt, len(PAUSES_SECONDS) - 1)])

    async def _read(self, story: Story, answer: httpx.Response) -> bool:
        """True once the stream has ended after a terminal event."""
        event_id, ended = None, False
        async for line in answer.aiter_lines():
            if line.startswith("id:"):
                event_id = line[3:].strip()
            elif line.startswith("data:"):
                data = json.loads(line[5:])
                told = Told(time.time(), data["status"], data.get("finished_at"), event_id)
                story.events.append(told)
                if told.status in TERMINAL:
                    story.see(data, told.at)
                ended = told.status in TERMINAL or told.status == "deleted"
        return ended
