"""From a request to its handler: authentication, the request line, the route."""

from __future__ import annotations

import hmac
import sys
import traceback

from collections_engine.simulator import control
from collections_engine.simulator.actions import cancel_payment, refund_payment
from collections_engine.simulator.charges import charge
from collections_engine.simulator.control_read import GETS, wait
from collections_engine.simulator.lookups import (
    get_capabilities,
    get_mandate,
    get_payment,
    list_movements,
    list_payments,
)
from collections_engine.simulator.message import Answer, JsonObject, RefusedError, json_answer
from collections_engine.simulator.objects import (
    cancel_object,
    confirm,
    get_object,
    list_objects,
    prepare,
)
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.validation import read_json_loosely
from collections_engine.simulator.webhooks import WebhookHub
from collections_engine.simulator.world import World

OK = 200
UNAUTHORIZED = 401
NOT_FOUND = 404
SIMULATOR_FAULT = 500


class Router:
    """The application behind the HTTP server."""

    def __init__(self, world: World, hub: WebhookHub) -> None:
        self._world = world
        self._hub = hub
        key = world.config.api_key
        self._bearer = None if key is None else f"Bearer {key}".encode()

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; a fault of the simulator itself is a 500 and counted."""
        is_control = exchange.request.path.startswith("/control/")
        if exchange.request.method == "POST" and not is_control:
            exchange.line = self._world.books.receive(exchange.request, self._world.clock.now())
        try:
            if is_control:
                exchange.send(await self._control(exchange))
            else:
                self._authenticate(exchange)
                await self._v1(exchange)
        except RefusedError as refusal:
            exchange.send(refusal.answer())
        except Exception:  # noqa: BLE001 - counted and shown, and the caller gets an answer
            self._world.errors += 1
            traceback.print_exc(file=sys.stderr)
            exchange.send(RefusedError(SIMULATOR_FAULT, "simulator_fault").answer())
        finally:
            if exchange.line is not None:
                self._world.books.close(exchange.line)

    def _authenticate(self, exchange: Exchange) -> None:
        given = exchange.request.headers.get("authorization", "").encode("latin-1")
        if self._bearer is not None and not hmac.compare_digest(given, self._bearer):
            raise RefusedError(UNAUTHORIZED, "unauthorized", "a valid API key is required")

    async def _v1(self, exchange: Exchange) -> None:
        world = self._world
        segments = exchange.request.path.strip("/").split("/")
        world.calls[f"{exchange.request.method} /{'/'.join(segments[:2])}"] += 1
        match (exchange.request.method, *segments):
            case ("POST", "v1", "payments") | ("POST", "v1", "redirected", "payments"):
                await charge(world, exchange)
            case ("GET", "v1", "payments"):
                await list_payments(world, exchange)
            case ("GET", "v1", "payments", payment_id):
                await get_payment(world, exchange, payment_id)
            case ("POST", "v1", "payments", payment_id, "refunds"):
                await refund_payment(world, exchange, payment_id)
            case ("POST", "v1", "payments", payment_id, "cancel"):
                await cancel_payment(world, exchange, payment_id)
            case ("GET", "v1", "capabilities"):
                await get_capabilities(world, exchange)
            case ("GET", "v1", "mandates", mandate):
                await get_mandate(world, exchange, mandate)
            case ("GET", "v1", "movements"):
                await list_movements(world, exchange)
            case _:
                await self._objects(exchange, segments)

    async def _objects(self, exchange: Exchange, segments: list[str]) -> None:
        world = self._world
        match (exchange.request.method, *segments):
            case ("POST", "v1", "payment-objects"):
                await prepare(world, exchange)
            case ("GET", "v1", "payment-objects"):
                await list_objects(world, exchange)
            case ("GET", "v1", "payment-objects", object_id):
                await get_object(world, exchange, object_id)
            case ("POST", "v1", "payment-objects", object_id, "confirm"):
                await confirm(world, exchange, object_id)
            case ("POST", "v1", "payment-objects", object_id, "cancel"):
                await cancel_object(world, exchange, object_id)
            case _:
                raise RefusedError(NOT_FOUND, "no_such_route")

    async def _control(self, exchange: Exchange) -> Answer:
        request = exchange.request
        name = request.path.removeprefix("/control/")
        if request.method == "GET" and name in GETS:
            return json_answer(OK, GETS[name](self._world, self._hub, dict(request.query)))
        if request.method != "POST":
            raise RefusedError(NOT_FOUND, "no_such_route")
        body: JsonObject = read_json_loosely(request.body)
        if name == "wait":
            return await wait(self._world, self._hub, body)
        if name in control.POSTS:
            return control.POSTS[name](self._world, self._hub, body)
        kind, _, target = name.partition("/")
        if kind == "payments" and target:
            return control.drive_payment(self._world, target, body)
        if kind == "mandates" and target:
            return control.set_mandate(self._world, self._hub, target, body)
        raise RefusedError(NOT_FOUND, "no_such_route")
