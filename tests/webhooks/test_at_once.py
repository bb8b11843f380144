"""A run, a recovery and the service on the same rows, real processes on a bad day (B18, B59)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.webhooks.stage import Stage

ROWS = 24


def test_answers_events_and_recovery_race_freely(stage: Stage) -> None:
    """Events early, twice, out of order, forged or lost; answers lost; each row settles once.

    The run and the recovery begin together; the service is killed and started again meanwhile.
    The rows whose every word was lost are found by the recovery that follows.
    """
    made = stage.seed(ROWS)
    first = stage.serve()
    hooks = {"webhook_url": f"{first.url}/webhooks/simulator"}
    stage.rail.control("settings", webhook_retry_seconds=[0.05, 0.2, 0.5], **hooks)
    faults: dict[str, dict[str, Any]] = {
        "duplicate": {"count": 2, "every": 3},
        "reorder": {"every": 5},
        "drop": {"every": 7},
        "bad_signature": {"every": 4},
        "delay": {"seconds": 0.2, "every": 2},
    }
    for fault, options in faults.items():
        stage.rail.fault(fault, on="webhook", **options)
    stage.rail.fault("status", on="charge", status=500, moved="yes", every=3)
    stage.rail.fault("pending", on="charge", every=4, then="settle", then_after_seconds=1)
    with ThreadPoolExecutor(3) as hands:
        running = hands.submit(stage.run, "run", "--json")
        recovering = hands.submit(stage.run, "recover", "--json")
        stage.wait(lambda: len(stage.inbox()) >= 3)
        first.kill()
        second = stage.serve()
        stage.rail.control("settings", webhook_url=f"{second.url}/webhooks/simulator")
        assert running.result(120).code in (0, 3)
        assert recovering.result(120).code in (0, 3)
    posts = len(stage.rail.requests())
    fired = stage.rail.fired()
    assert all(fired.get(kind, 0) > 0 for kind in (*faults, "status", "pending")), fired
    stage.rail.control("faults", faults=[])
    stage.connection.execute(
        "UPDATE payment_requests SET next_check = engine_now() WHERE next_check IS NOT NULL"
    )
    stage.connection.execute(
        "UPDATE instalments SET lease_until = engine_now() WHERE lease_until > engine_now()"
    )
    after = stage.run("recover", "--json")
    assert after.code == 0, (after.err, json.loads(after.out))
    stage.wait(lambda: not [e for e in stage.inbox() if e["state"] in ("new", "parked")])
    assert len(stage.rail.requests()) == posts, "nothing was sent a second time"
    for row in made:
        state = stage.state(row)
        assert (state["status"], state["outstanding_amount"]) == ("paid", 0)
        (payment,) = stage.payments(row)
        assert stage.credits(payment["id"]) == [row.amount_minor]
    assert {e["state"] for e in stage.inbox()} == {"done"}
    stage.check()
    daily = stage.run("run", "--json")
    assert daily.json["picked"] == 0
