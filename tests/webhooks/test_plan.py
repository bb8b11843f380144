"""The test plan of the webhook door, against the running service with real processes."""

from __future__ import annotations

from tests.webhooks.stage import Stage, event, made_up


def test_first(stage: Stage) -> None:
    """x."""
    (row,) = stage.seed()
    payment = stage.sent(row)
    service = stage.serve()
    assert service.deliver(event("payment.collected", payment)) == 200
    stage.settled()
    print(stage.inbox(), stage.state(row))
    print(service.send("GET", "/metrics")[1].decode(), service.send("GET", "/readyz"), service.send("GET", "/healthz"))
    print(service.deliver(event("payment.collected", payment), account="x"))
    print(service.send("GET", "/webhooks/simulator"))
    stage.check()
    print(service.stop())
    assert 0
