"""Collect now beside a run, and while the service is told to stop: one charge, and none is lost."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from collections_engine.client import ApiError, Client
from tests.api.door import DUE, Caller
from tests.support.pgproxy import Proxy

if TYPE_CHECKING:
    from tests.webhooks.stage import Stage


def test_asks_beside_a_run(stage: Stage) -> None:
    """20 rows are asked for one by one while a run takes them all: 20 charges, none twice (P1)."""
    made = stage.seed(20, due=DUE)
    caller = Caller.of(stage, stage.serve("--no-drain"))
    client = Client(caller.service.url, caller.token)

    def ask(ref: str) -> str:
        try:
            return str(client.collect(ref).status)
        except ApiError as error:
            return error.code

    with ThreadPoolExecutor(5) as hands:
        run = hands.submit(stage.run, "run", "--json")
        said = list(hands.map(ask, [row.external_ref for row in made]))
        assert run.result(120).code in (0, 3), run.result().err
    assert set(said) <= {"202", "held_by_another_worker", "paid"}, said
    stage.wait(lambda: all(stage.state(row)["status"] == "paid" for row in made))
    assert len(stage.rail.requests()) == 20
    stage.check()


def test_told_to_stop_while_a_charge_is_out(stage: Stage) -> None:
    """SIGTERM: the row in hand is finished and recorded, the ask that waits is taken up later."""
    first, second = stage.seed(2, due=DUE)
    with Proxy(stage.database) as proxy:
        behind = replace(stage, database=proxy.url)
        caller = Caller.of(stage, behind.serve("--no-drain"))
        client = Client(caller.service.url, caller.token)
        rule = proxy.rule("-- Record answers", when="before", do="hold", times=1)
        client.collect(first.external_ref)
        rule.wait()  # it was sent, and is not recorded yet
        client.collect(second.external_ref)
        stopped = stage.later(caller.service.stop)
        stage.wait(lambda: not answers(client))
        rule.release()
        assert "serve.stopped" in stopped.result(60)
    assert caller.service.process.returncode == 0
    assert stage.state(first)["status"] == "paid"
    assert stage.fresh("SELECT state FROM collect_asks ORDER BY asked_at") == [
        ("done",),
        ("waiting",),
    ]
    assert len(stage.rail.requests()) == 1
    stage.serve("--no-drain")
    stage.wait(lambda: stage.state(second)["status"] == "paid")
    assert len(stage.rail.requests()) == 2
    stage.check()


def answers(client: Client) -> bool:
    """Whether the service still takes requests."""
    try:
        with socket.create_connection((client._host, client._port or 80), timeout=2) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
    except OSError:
        return False
