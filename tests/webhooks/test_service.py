"""The service itself: its start, its end, its health; and what stands in no log, answer or list."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psycopg

from tests.simulator.rail import SECRET
from tests.support.command import Command
from tests.support.pgproxy import Proxy
from tests.webhooks.stage import SIGNER, Stage, event, made_up

NAME = "Zoë Q. Example"
IBAN = "GB29NWBK60161331926819"


def test_without_a_secret_it_does_not_start(stage: Stage) -> None:
    """Unset, empty, blank, or too short to be one: exit 2, and nothing listens (B51)."""
    bare = {k: v for k, v in stage.command.variables.items() if "SECRET" not in k}
    for secret in (None, "", " ", "whsec_", "whsec_c2hvcnQ="):
        more = {} if secret is None else {"COLLECTIONS_SIMULATOR_WEBHOOK_SECRET": secret}
        done = Command(**bare, **more)("serve", "--port", "0")
        assert (done.code, done.out) == (2, ""), secret
        assert "COLLECTIONS_SIMULATOR_WEBHOOK_SECRET" in done.err


def test_an_account_without_a_secret_is_not_served(stage: Stage, tmp_path: Path) -> None:
    """Beside one that has a secret: 404 as for any unknown name, so that nothing is told (B51)."""
    stage.seed()
    config = tmp_path / "collections.toml"
    config.write_text(f'[provider_accounts.other]\nkind = "simulator"\nurl = "{stage.rail.url}"\n')
    service = stage.serve("--no-drain", COLLECTIONS_CONFIG=str(config))
    told = event("payment.collected", {}, "evt_1")
    empty = {"webhook-signature": "v1,LGZ1bGw="}
    answers = {
        (service.deliver(told, account=name, headers=empty), name == "simulator")
        for name in ("other", "nobody", "simulator")
    }
    assert answers == {(404, False), (401, True)}
    assert stage.inbox() == []


def test_the_extra_that_is_missing(stage: Stage, tmp_path: Path) -> None:
    """Without its packages the command says how to install them: exit 2."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda n, p=None: None if n == 'falcon' else real(n, p)\n"
    )
    path = f"{tmp_path}:{stage.command.environment()['PYTHONPATH']}"
    done = stage.command("serve", PYTHONPATH=path)
    assert done.code == 2
    assert "pip install 'collections-engine[web]'" in done.err


def test_an_orderly_end(stage: Stage) -> None:
    """SIGTERM while a delivery waits for its commit: it is answered, then the process ends."""
    (row,) = stage.seed()
    payment = stage.sent(row)
    with Proxy(stage.database) as proxy:
        held = proxy.rule("INSERT INTO inbox AS b", when="before", do="hold")
        service = stage.serve(COLLECTIONS_DATABASE_URL=proxy.url)
        answer = stage.later(lambda: service.deliver(event("payment.collected", payment)))
        held.wait()
        service.process.send_signal(signal.SIGTERM)
        stage.wait(service.refuses)
        assert not answer.done()
        held.release()
        assert answer.result(10) == 200
        assert service.ended() == 0
    assert len(stage.inbox()) == 1


def test_before_anything_was_imported(stage: Stage) -> None:
    """A database without an identity takes deliveries; they wait for the first import (P18)."""
    service = stage.serve()
    row = stage.row()
    assert service.deliver(event("payment.collected", made_up(row, metadata={}))) == 200
    assert [e["state"] for e in stage.inbox()] == ["new"]
    stage.seed()
    stage.settled()
    assert stage.state(row)["status"] == "paid"
    waiting = [line for line in service.stop().splitlines() if "inbox.waiting" in line]
    assert len(waiting) == 1
    assert "no identity yet" in waiting[0]


def test_health_and_figures(stage: Stage) -> None:
    """Alive always; ready while the database and its schema are there; figures say what came."""
    (row,) = stage.seed()
    payment = stage.sent(row)
    with Proxy(stage.database) as proxy:
        service = stage.serve(COLLECTIONS_DATABASE_URL=proxy.url)
        status, body = service.send("GET", "/readyz")
        assert status == 200
        assert json.loads(body)["ready"] is True
        told = event("payment.collected", payment)
        assert [service.deliver(told), service.deliver(told)] == [200, 200]
        stage.settled()
        figures = service.send("GET", "/metrics")[1].decode()
        for line in (
            'collections_webhook_deliveries_total{account="simulator",result="stored"} 1.0',
            'collections_webhook_deliveries_total{account="simulator",result="repeated"} 1.0',
            "collections_database_up 1.0",
            'collections_inbox_events{state="dead"} 0.0',
        ):
            assert line in figures
        assert payment["id"] not in figures
        with psycopg.connect(stage.database, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT * FROM schema_migrations")
            connection.execute("DELETE FROM schema_migrations WHERE number = 8")
            status, body = service.send("GET", "/readyz")
            assert (status, json.loads(body)["schema"]) == (503, "behind")
            connection.execute("INSERT INTO schema_migrations SELECT * FROM kept WHERE number = 8")
        assert service.send("GET", "/readyz")[0] == 200
        proxy.rule("SELECT", do="cut", times=None)
        status, body = service.send("GET", "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "database": "unreachable"})
        assert service.send("GET", "/healthz")[0] == 200
        assert "collections_database_up 0.0" in service.send("GET", "/metrics")[1].decode()
        proxy.clear()


def test_what_may_be_seen_of_an_event(stage: Stage) -> None:
    """Names and account numbers in a payload stand in no log and no list (B52); secrets nowhere."""
    (row,) = stage.seed()
    payment = {**stage.sent(row), "customer_name": NAME, "description": f"for {NAME}, {IBAN}"}
    service = stage.serve(COLLECTIONS_LOG_LEVEL="debug")
    told = event("payment.collected", payment)
    broken = {"id": "evt_2", "type": "payment.collected", "created_at": NAME, "data": IBAN}
    assert [service.deliver(told), service.deliver(broken)] == [200, 200]
    bad = SIGNER.headers("evt_3", int(time.time()), b"other")
    assert service.deliver({**told, "id": "evt_3"}, headers=bad) == 401
    stage.settled(1)
    shown = stage.run("webhooks", "show", "1", "--json")
    assert shown.code == 0
    assert shown.json["says"]["payment"] == payment["id"]
    assert [b["movement"] for b in shown.json["booked"]] == ["collect"]
    listed = stage.run("webhooks", "list", "--json")
    texts = [shown.out, shown.err, listed.out, stage.run("webhooks", "show", "2").out]
    texts += [stage.run("webhooks", "list").out, service.send("GET", "/metrics")[1].decode()]
    texts += [service.stop(), str(stage.fresh("SELECT last_error, reason FROM inbox"))]
    for secret in (NAME, "Zo", IBAN, SECRET, SECRET.removeprefix("whsec_")):
        assert not [text for text in texts if secret in text], secret
