"""Is everything as it must be? Each finding says what is wrong, how bad it is, and what to do.

The invariants stand in `sql/checks/`; the rest looks at the server, the session, the schema, the
clocks, the gateways and at whether anybody runs the engine at all. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from collections_engine.domain.errors import EngineError
from collections_engine.domain.gateway import Gateway, GatewayUnreachable, LookupQuestion
from collections_engine.domain.request import reference
from collections_engine.store import (
    checks,
    control,
    desk,
    figures,
    identity,
    inbox,
    migrate,
)
from collections_engine.store.db import Connection
from collections_engine.usecases import interlock

CLOCK_TOLERANCE = timedelta(minutes=2)
RUN_EXPECTED_EVERY = timedelta(hours=36)
STATEMENT_EXPECTED_EVERY = timedelta(days=3)
INBOX_MAY_WAIT = timedelta(minutes=10)
_NOBODY = UUID(int=0)


class Severity(StrEnum):
    """How bad a finding is; the worst one is the exit code."""

    BROKEN = "broken"
    """A money invariant does not hold: exit 4."""
    PERSON = "person"
    """Somebody must do something: exit 3."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be."""

    check: str
    severity: Severity
    subject: str
    text: str
    fix: str


def check_invariants(connection: Connection) -> list[Finding]:
    """Return every row that breaks an invariant of `sql/checks/`; empty is healthy."""
    return [
        Finding(c.name, Severity(c.severity), b.subject, f"{b.detail} (must hold: {c.why})", c.fix)
        for c in checks.checks()
        for b in checks.run_check(connection, c)
    ]


def diagnose(
    first: Connection, second: Connection, gateways: Mapping[str, Gateway], day: date
) -> list[Finding]:
    """Look at everything; `first` and `second` are two sessions of their own."""
    findings = [*_server(first, second), *_schema(first)]
    if any(f.check == "schema" for f in findings):
        return findings  # the checks speak of this version's tables
    findings += check_invariants(first)
    findings += _copy(first)
    for gateway in gateways.values():
        findings += _gateway(first, gateway)
    if not gateways:
        findings.append(
            _finding(
                "gateways",
                "settings",
                "no provider account is configured",
                "set COLLECTIONS_SIMULATOR_URL or [provider_accounts.…]",
            )
        )
    findings += _rights(first)
    findings += _work(first, day)
    findings += _jobs(first, gateways)
    return findings


def exit_code(findings: list[Finding]) -> int:
    """Return 0 healthy, 3 when a person is needed, 4 when a money invariant is broken."""
    worst = {f.severity for f in findings}
    if Severity.BROKEN in worst:
        return 4
    return 3 if Severity.PERSON in worst else 0


def _finding(
    check: str, subject: str, text: str, fix: str, severity: Severity = Severity.PERSON
) -> Finding:
    return Finding(check, severity, subject, text, fix)


def _server(first: Connection, second: Connection) -> Iterator[Finding]:
    """Durability, a primary, a session of our own, a clock that does not run behind (P19, P20)."""
    looks: dict[str, Callable[[], None]] = {
        "durability": lambda: interlock.check_durable(first),
        "session": lambda: interlock.check_session(first, second),
    }
    for name, look in looks.items():
        try:
            look()
        except EngineError as error:
            yield _finding(name, "database", str(error), "see the server's settings")


def _schema(connection: Connection) -> Iterator[Finding]:
    try:
        pending = migrate.pending(connection)
    except EngineError as error:
        yield _finding("schema", "database", str(error), "install the matching version")
        return
    if pending:
        text = f"migrations are not applied: {', '.join(pending)}"
        yield _finding("schema", "database", text, "collections db migrate")


def _copy(connection: Connection) -> Iterator[Finding]:
    """Compare the fingerprint without pausing anything, and look at the clock (P18, P19)."""
    stored = identity.identity(connection)
    if stored is None:
        text = "this database has no identity yet: nothing was ever imported or run"
        yield _finding("identity", "database", text, "collections import FILE", Severity.NOTE)
        return
    if stored.fingerprint != identity.fingerprint(connection):
        text = "this database is not the one it was (a clone, a restore or a failover)"
        yield _finding("identity", "database", text, "collections db adopt --as clone|restore")
    try:
        interlock.check_clock(connection)
    except EngineError as error:
        yield _finding("clock", "database", str(error), "set the server's clock right")


def _gateway(connection: Connection, gateway: Gateway) -> Iterator[Finding]:
    """Reachable, the account and mode that it was bound as, clocks that agree, a list by time."""
    name = gateway.name
    try:
        described, contract = gateway.describe(), gateway.contract()
        provider_time = _provider_time(connection, gateway)
    except GatewayUnreachable as error:
        yield _finding("gateway", name, f"cannot be reached: {error}", "try again; then its URL")
        return
    mode = f"answers as {described.account} in {described.mode} mode"
    bound = identity.account(connection, name)
    if bound is not None and bound.fingerprint not in (None, described.fingerprint):
        text = f"{mode}, but was bound as {bound.account} in {bound.mode} mode"
        yield _finding("gateway", name, text, f"collections db adopt --account {name}")
    else:
        yield _finding("gateway", name, mode, "nothing to do", Severity.NOTE)
    ours, _ = identity.clock(connection)
    if provider_time is None:
        text = "its answers carry no Date header, so nothing is ever sent again to it"
        yield _finding("clock", name, text, "ask the provider")
    elif abs(provider_time - ours) > CLOCK_TOLERANCE:
        text = f"its clock and the database's differ by {abs(provider_time - ours)}"
        yield _finding("clock", name, text, "set the database server's clock right")
    if not contract.lists_by_time:
        text = "cannot list payments by time, so the books cannot be compared with it"
        yield _finding("statement", name, text, "compare its statement by hand, daily")


def _provider_time(connection: Connection, gateway: Gateway) -> datetime | None:
    """Read the Date header of a lookup that finds nothing."""
    stored = identity.identity(connection)
    name = stored.identity if stored else "a" * 16
    channel = gateway.open()
    try:
        question = LookupQuestion((reference(name, _NOBODY),), "", (), (), name)
        return channel.lookup(question).provider_time
    finally:
        channel.close()


def _work(connection: Connection, day: date) -> Iterator[Finding]:
    """Look whether anybody runs it, what waits for a person, what is overdue (P17)."""
    for scope in control.paused(connection):
        where = "everything" if scope.scope == control.EVERYTHING else scope.scope
        text = f"charging is paused since {scope.since:%Y-%m-%d %H:%M} UTC: {scope.reason}"
        yield _finding("pause", where, text, "collections unpause, when the reason is gone")
    counts = control.counts(connection, day)
    for row in control.overdue(connection, day, checks.MOST):
        text = f"is due since {row['collect_date']}, over 3 days ago"
        fix = f"collections why {row['external_ref']}"
        yield _finding("overdue", f"instalment {row['external_ref']}", text, fix)
    if counts["open_reviews"]:
        text = f"{counts['open_reviews']} open items wait for a person"
        yield _finding("review", "review list", text, "collections inflight list --review")
    last = next((r for r in desk.newest_runs(connection, 50) if r["kind"] == "run"), None)
    now, _ = identity.clock(connection)
    late = last is None or now - last["started_at"] > RUN_EXPECTED_EVERY
    if late and counts["due_now"]:
        when = (
            f"the last run began {last['started_at']:%Y-%m-%d %H:%M} UTC" if last else "no run yet"
        )
        text = f"{when}, and {counts['due_now']} rows are due"
        yield _finding("run", "schedule", text, "is cron (or the daemon) running? collections run")


def _rights(connection: Connection) -> Iterator[Finding]:
    """Whether the role could write in the books past the functions that are meant for it."""
    held = figures.rights(connection)
    role = held.get("role", "")
    if held.get("superuser") or held.get("owner"):
        what = "is a superuser" if held["superuser"] else "owns the tables"
        text = f"works as {role}, who {what}; a role of its own could do less by mistake"
        fix = "collections db grants prints the roles; name one in COLLECTIONS_DATABASE_URL"
        yield _finding("grants", "database", text, fix, Severity.NOTE)
    elif held.get("edits_books"):
        text = f"{role} may edit what is booked"
        yield _finding("grants", "database", text, "run the statements of collections db grants")


def _jobs(connection: Connection, gateways: Mapping[str, Gateway]) -> Iterator[Finding]:
    """Whether the other jobs are done: stored events applied, books compared (P17)."""
    states, lag = inbox.figures(connection)
    if lag > INBOX_MAY_WAIT.total_seconds():
        text = f"stored events wait for {lag / 60:.0f} minutes"
        yield _finding("inbox", "schedule", text, "collections webhooks drain, or serve")
    if dead := states.get("dead", 0):
        text = f"{dead} stored events could not be applied; their rows are not charged"
        fix = "collections webhooks list --state dead; mend it, then replay"
        yield _finding("inbox", "webhooks", text, fix)
    first = figures.first_collect(connection)
    now, _ = identity.clock(connection)
    told = {row["provider_account"]: row["finished"] for row in figures.statements(connection)}
    for name in gateways:
        at = told.get(name)
        since = now.timestamp() - at if at is not None else None
        limit = STATEMENT_EXPECTED_EVERY
        unheard = first is not None and now - first > limit and name not in told
        if unheard or (since is not None and since > limit.total_seconds()):
            text = "its books were never compared with ours"
            if since is not None:
                text = f"its books were last compared with ours {since / 86_400:.0f} days ago"
            fix = "collections statement compare --from yesterday --to yesterday"
            yield _finding("statement", name, text, fix)
