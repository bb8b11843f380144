"""Webhooks: events, their log, and delivery in order with retries and faults.

One queue delivers first attempts in the order of the events, so that anything out of order
comes from a fault and not from chance. Retries wait on their own and do not block the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field

from collections_engine.simulator.clock import MICROS, rfc3339, wall_micros
from collections_engine.simulator.faults import FaultRule, Subject
from collections_engine.simulator.message import JsonObject, encode
from collections_engine.simulator.posting import post
from collections_engine.simulator.signing import WebhookSigner
from collections_engine.simulator.world import World

REFUSED = 300
BAD_TIMESTAMP_SHIFT = -3600


@dataclass(slots=True)
class Event:
    """One event and every attempt to deliver it."""

    id: str
    type: str
    body: bytes
    subject: Subject
    fault: str | None = None
    deliveries: list[JsonObject] = field(default_factory=list)

    def view(self) -> JsonObject:
        """The event as ``GET /control/webhooks`` shows it."""
        return {
            "id": self.id,
            "type": self.type,
            "fault": self.fault,
            "body": json.loads(self.body),
            "deliveries": list(self.deliveries),
        }


class WebhookHub:
    """Makes events and delivers them to the receiver in the settings, if there is one."""

    def __init__(self, world: World) -> None:
        secret = world.config.webhook_secret
        self._world = world
        self._signer = WebhookSigner(secret) if secret is not None else None
        self._queue: asyncio.Queue[tuple[Event, FaultRule | None]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passed_over: list[tuple[Event, FaultRule | None]] = []
        self.events: list[Event] = []
        self.attempts = 0

    def start(self) -> None:
        """Begin to deliver."""
        self._spawn(self._work())

    async def stop(self) -> None:
        """Stop delivering."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def clear(self) -> None:
        """Forget all events and stop what is on its way."""
        for task in self._tasks:
            task.cancel()
        self._queue = asyncio.Queue()
        self._passed_over.clear()
        self.events = []
        self.attempts = 0
        self.start()

    @property
    def can_sign(self) -> bool:
        """False without a secret: then nothing is ever delivered."""
        return self._signer is not None

    def emit(self, event_type: str, data: JsonObject, subject: Subject) -> None:
        """Make an event and put its delivery, as the faults have it, on the queue."""
        event_id = self._world.ids.new("evt")
        document: JsonObject = {
            "id": event_id,
            "type": event_type,
            "created_at": rfc3339(self._world.clock.now()),
            "data": data,
        }
        event = Event(event_id, event_type, encode(document), subject)
        self.events.append(event)
        if self._world.settings.webhook_url is not None:
            self._dispatch(event)

    def send_again(self, event_id: str, count: int) -> bool:
        """Deliver an event again; False when there is no such event."""
        for event in self.events:
            if event.id == event_id:
                for _ in range(count):
                    self._queue.put_nowait((event, None))
                return True
        return False

    def send_raw(self, document: JsonObject) -> str:
        """Sign and deliver a body made by a test; returns its id."""
        event_id = str(document.get("id") or self._world.ids.new("evt"))
        event_type = str(document.get("type", "unknown"))
        event = Event(event_id, event_type, encode({**document, "id": event_id}), Subject())
        self.events.append(event)
        self._queue.put_nowait((event, None))
        return event_id

    def _dispatch(self, event: Event) -> None:
        wanted = Subject(
            event.subject.mandate,
            event.subject.reference,
            event.subject.external_ref,
            event.subject.attempt,
            event=event.type,
        )
        rule = self._world.faults.pick("webhook", wanted)
        event.fault = rule.kind if rule is not None else None
        match event.fault:
            case "drop":
                return
            case "reorder":
                self._passed_over.append((event, rule))
                return
            case "delay":
                seconds = rule.number("seconds") if rule is not None else None
                self._later(1.0 if seconds is None else seconds, event, rule)
            case "hold":
                self._spawn(self._held(event, rule))
            case "duplicate":
                count = rule.whole("count", 2) if rule is not None else 1
                for _ in range(count):
                    self._queue.put_nowait((event, rule))
            case _:
                self._queue.put_nowait((event, rule))
        # An event that a reorder fault passed over follows the next one.
        self.let_pass()

    def let_pass(self) -> None:
        """Queue the events that a reorder fault holds back."""
        while self._passed_over:
            self._queue.put_nowait(self._passed_over.pop(0))

    async def _held(self, event: Event, rule: FaultRule | None) -> None:
        await self._world.hold("hold", "before", "webhook", event.subject)
        self._queue.put_nowait((event, rule))

    def _later(self, seconds: float, event: Event, rule: FaultRule | None) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            self._queue.put_nowait((event, rule))

        self._spawn(wait())

    async def _work(self) -> None:
        while True:
            event, rule = await self._queue.get()
            status = await self._attempt(event, rule)
            if status is None or status >= REFUSED:
                self._retry(event)

    def _retry(self, event: Event) -> None:
        pauses = self._world.settings.webhook_retry_seconds
        failed = sum(1 for one in event.deliveries if one["failed"])
        if failed <= len(pauses):
            self._later(pauses[failed - 1], event, None)

    async def _attempt(self, event: Event, rule: FaultRule | None) -> int | None:
        url = self._world.settings.webhook_url
        if url is None or self._signer is None:
            return 0
        body, headers = self._signed(event, rule, self._signer)
        status: int | None = None
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            status = await post(url, headers, body)
        failed = status is None or status >= REFUSED
        number = len(event.deliveries) + 1
        event.deliveries.append({"n": number, "status": status, "failed": failed})
        self.attempts += 1
        self._world.changed()
        return status

    def _signed(
        self, event: Event, rule: FaultRule | None, signer: WebhookSigner
    ) -> tuple[bytes, dict[str, str]]:
        real = self._world.settings.webhook_clock == "system"
        timestamp = (wall_micros() if real else self._world.clock.now()) // MICROS
        kind = rule.kind if rule is not None else ""
        if rule is not None and kind == "bad_timestamp":
            timestamp += rule.whole("offset_seconds", BAD_TIMESTAMP_SHIFT)
        headers = signer.headers(event.id, timestamp, event.body)
        if kind == "bad_signature":
            headers["webhook-signature"] = "v1," + "A" * 43 + "="
        body = event.body + b"\n" if kind == "altered_body" else event.body
        return body, headers

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
