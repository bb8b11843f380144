"""Builds the engine from the settings; the only place that names concrete classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from collections_engine import telemetry
from collections_engine.domain import dunning, workdays
from collections_engine.domain.errors import (
    GuardRefused,
    InterlockRefused,
    UsageError,
)
from collections_engine.domain.gateway import Gateway
from collections_engine.gateways.simulator import SimulatorGateway
from collections_engine.settings import ProviderAccount, Settings
from collections_engine.store import db, embedded, explaining, identity, migrate
from collections_engine.store.db import Connection
from collections_engine.store.identity import Fingerprint, Identity
from collections_engine.usecases.breaker import Breaker
from collections_engine.usecases.context import Channels, Context, Limits
from collections_engine.usecases.steps import Steps, StepSettings

T = TypeVar("T")

POOL_MAX = 6
POOL_TIMEOUT_SECONDS = 10.0


class PooledSource:
    """Lends pooled connections to steps; one that broke under its work never comes back."""

    def __init__(
        self, pool: ConnectionPool[Connection], timeout_seconds: float = POOL_TIMEOUT_SECONDS
    ) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds

    def hasty(self, timeout_seconds: float) -> PooledSource:
        """The same connections for those who cannot wait long for one."""
        return PooledSource(self._pool, timeout_seconds)

    def begin_anew(self) -> None:
        """Lend no connection again that was opened before now."""
        self._pool.drain()

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work on a connection; raises what the work raised, or PoolTimeout (transient)."""
        with self._pool.connection(timeout=self._timeout_seconds) as connection:
            try:
                return work(connection)
            except Exception as error:
                if db.connection_lost(error):
                    connection.close()  # the pool discards what is closed
                raise


@dataclass
class ServerSeen:
    """The server that was asked who it is; None while no use of this engine has asked (P18)."""

    fingerprint: Fingerprint | None = None

    def check(self, connection: Connection) -> None:
        """Refuse a connection that reached another server, after a failover in the middle of a run.

        The pool then lends nothing: what is open stays open, and the next start says why (exit 4).
        """
        if self.fingerprint is not None and identity.fingerprint(connection) != self.fingerprint:
            raise InterlockRefused("the database is not the one that this process began with")


@dataclass
class Engine:
    """Everything a command needs, open for as long as the `with` block lasts."""

    settings: Settings
    actor: str
    url: str
    source: PooledSource
    gateways: Mapping[str, Gateway]
    readonly: bool = False
    log: Any = None
    server: ServerSeen = field(default_factory=ServerSeen)
    _opened: list[Connection] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    @contextmanager
    def open(
        settings: Settings,
        *,
        actor: str,
        need_database: bool = True,
        readonly: bool = False,
        any_schema: bool = False,
    ) -> Iterator[Engine]:
        """Connect and yield the engine; raises UsageError (2), GuardRefused (4), Unavailable (75).

        Without a named database the embedded server is started and brought up to date; a named
        one with pending migrations is refused, unless `any_schema`. `need_database=False` opens
        no connection.
        """
        log = telemetry.get_logger()
        gateways = {n: _gateway(n, a, settings) for n, a in settings.provider_accounts.items()}
        if not need_database:
            unopened = _pool(settings, "", actor, ServerSeen(), readonly=readonly)
            yield Engine(settings, actor, "", PooledSource(unopened), gateways, readonly, log)
            return
        url = database_url(settings)
        if not any_schema:
            _check_schema(settings, url, actor, readonly=readonly, log=log)
        seen = ServerSeen()
        pool = _pool(settings, url, actor, seen, readonly=readonly)
        pool.open(wait=False)
        engine = Engine(settings, actor, url, PooledSource(pool), gateways, readonly, log, seen)
        try:
            yield engine
        finally:
            engine.close()
            pool.close()

    def connect(self) -> Connection:
        """Open a connection of its own, closed with the engine at the latest."""
        made = _connect(self.settings, self.url, self.actor, readonly=self.readonly, log=self.log)
        with self._lock:
            self._opened.append(made)
        return made

    def close(self) -> None:
        """Close the connections that `connect` made."""
        with self._lock:
            for connection in self._opened:
                connection.close()
            self._opened.clear()

    def today(self) -> date:
        """Return the business date now, by this process's clock in the business zone."""
        return business_today(self.settings)

    @property
    def limits(self) -> Limits:
        """The durations that bound what may be in doubt."""
        return limits(self.settings)

    def context(
        self,
        business_date: date,
        found: Identity,
        *,
        stopping: Callable[[], bool] = lambda: False,
        recognised: bool = False,
    ) -> Context:
        """Build what the page may touch.

        `recognised`: the server was compared with its stored identity, and from here on no
        connection to another one is used (P18).
        """
        if recognised and self.server.fingerprint != found.fingerprint:
            self.server.fingerprint = found.fingerprint
            self.source.begin_anew()
        settings, bounds = self.settings, self.limits
        steps = StepSettings(
            day=business_date,
            lease=bounds.lease,
            permit_duration=bounds.permit,
            caps=settings.caps,
            customer_charges=settings.customer_charges_per_day,
        )
        accounts = settings.provider_accounts
        return Context(
            steps=Steps(self.source, steps),
            channels=Channels(self.gateways),
            identity=found.identity,
            business_date=business_date,
            limits=bounds,
            retry_for=dunning.retry_table(
                settings.retry_policy, business_date, settings.calendar.holidays
            ),
            adopted_at=found.adopted_at,
            accounts_without_lookup=frozenset(n for n, a in accounts.items() if a.allow_no_lookup),
            stopping=stopping,
            log=self.log.info,
            breaker=Breaker(settings.breaker_failures),
        )

    def collect_on(self, due: date) -> date:
        """Return the day from which money due on this day may be charged, by the calendar."""
        calendar = self.settings.calendar
        return workdays.collect_date(due, calendar.due_convention, calendar.holidays)


def limits(settings: Settings) -> Limits:
    """Return the durations of the settings."""
    return Limits(
        lease=timedelta(seconds=settings.lease_seconds),
        deadline=timedelta(seconds=settings.gateway_deadline_seconds),
    )


def business_today(settings: Settings, now: datetime | None = None) -> date:
    """Return the date in the business zone; the process's own zone plays no part (P19)."""
    zone = ZoneInfo(settings.timezone)
    return (now.astimezone(zone) if now else datetime.now(zone)).date()


def database_url(settings: Settings) -> str:
    """Return the named database's URL, or start the embedded server and return its."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return embedded_url(settings.home)


def embedded_url(home: Path) -> str:
    """Start the embedded server unless it runs; raises UsageError where it cannot be used."""
    try:
        return embedded.ensure_running(home)
    except embedded.EmbeddedError as error:
        raise UsageError(f"{error}\nNothing was started or charged.") from error


def embedded_status(home: Path) -> embedded.ServerStatus:
    """Look at the embedded server without starting it."""
    return embedded.status(home)


def stop_embedded(home: Path) -> bool:
    """Stop the embedded server; False when it was not running."""
    return embedded.stop(home)


def pending_migrations(settings: Settings, url: str, actor: str) -> list[str]:
    """Return the names of migrations not yet applied; changes nothing."""
    with _connect(settings, url, actor, readonly=True, log=telemetry.get_logger()) as connection:
        return migrate.pending(connection)


def apply_migrations(settings: Settings, url: str, actor: str) -> list[str]:
    """Bring the schema up to date; returns the names applied now."""
    pending_migrations(settings, url, actor)  # waits for a server on its way up
    return migrate.migrate(url)


def _check_schema(settings: Settings, url: str, actor: str, *, readonly: bool, log: Any) -> None:
    pending = pending_migrations(settings, url, actor)
    if not pending:
        return
    if settings.database_url is None and not readonly:
        log.info("database.migrated", migrations=migrate.migrate(url))
        return
    raise GuardRefused(
        f"the database lacks {len(pending)} migration(s) of this version; nothing was read,"
        " imported or charged. Apply them first: collections db migrate"
    )


def _gateway(name: str, account: ProviderAccount, settings: Settings) -> Gateway:
    return SimulatorGateway(
        name,
        account.url,
        api_key=account.api_key.get_secret_value() if account.api_key else None,
        deadline_seconds=settings.gateway_deadline_seconds,
        contract_settings=account.contract,
        webhook_secrets=account.webhook_secret.get_secret_value()
        if account.webhook_secret
        else None,
    )


# ---------------------------------------------------------------- connections


def _pool(
    settings: Settings, url: str, actor: str, seen: ServerSeen, *, readonly: bool
) -> ConnectionPool[Connection]:
    return ConnectionPool(
        url,
        min_size=1,
        max_size=POOL_MAX,
        open=False,
        timeout=POOL_TIMEOUT_SECONDS,
        kwargs={"autocommit": True, "row_factory": dict_row, "connect_timeout": 10},
        configure=lambda c: _configure(settings, c, actor, seen, readonly=readonly),
        name="engine",
    )


def _configure(
    settings: Settings, connection: Connection, actor: str, seen: ServerSeen, *, readonly: bool
) -> None:
    # Short and below the lease: a step that could not have its lock in time is asked again, alone.
    lock_timeout = min(1.0, settings.lease_seconds / 2)
    db.configure(connection, actor, lock_timeout_seconds=lock_timeout, by_index=True)
    if readonly:
        connection.execute("SET default_transaction_read_only = on")
    seen.check(connection)


def _connect(settings: Settings, url: str, actor: str, *, readonly: bool, log: Any) -> Connection:
    """Connect, waiting a while for a server on its way up; the one place that waits for it."""

    def waiting(state: Any) -> None:
        if state.attempt_number == 1:
            log.warning("database.waiting", seconds=settings.database_wait_seconds)

    started = time.monotonic()
    try:
        for attempt in Retrying(
            retry=retry_if_exception(explaining.worth_waiting),
            stop=stop_after_delay(settings.database_wait_seconds),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            before_sleep=waiting,
            reraise=True,
        ):
            with attempt:
                connection = db.connect(
                    url, actor, lock_timeout_seconds=min(20.0, settings.lease_seconds / 2)
                )
                if readonly:
                    connection.execute("SET default_transaction_read_only = on")
                return connection
    except psycopg.Error as error:
        known = explaining.explained(error, waited_seconds=time.monotonic() - started)
        raise known or UsageError(
            "the database's connection string cannot be read; nothing was done."
            " Look at COLLECTIONS_DATABASE_URL."
        ) from None
    raise AssertionError("unreachable: reraise is set")
