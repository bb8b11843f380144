"""The desk: placeholder while it is being built."""
from tests.support.rows import *
from tests.simulator.rail import Process

def test_smoke(database, connect):
    """Smoke."""
    c = connect()
    rows = seed(c, 3)
    with Process() as p:
        p.rail.control("reset")
        from collections_engine.usecases.collect import collect
        w = context(database, gateway(p.rail.url))
        o = collect(rows[0].due, w)
        print(o, state(c, rows[0]))
        print(balances(c))
        assert_books(c)
    sent(c, rows[1])
    print(settle(c, said(rows[1], "collected")), state(c, rows[1]))
    assert_books(c)
