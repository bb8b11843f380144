"""The settings' shapes: what a key may hold, and its default.

`settings` reads them; `collections.example.toml` shows every key with its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator

from collections_engine.domain.dunning import DEFAULT_SOFT_CODES, RetryPolicy
from collections_engine.domain.errors import SettingsError
from collections_engine.domain.wallet import WalletPolicy
from collections_engine.domain.workdays import Convention
from collections_engine.gateways import signatures
from collections_engine.telemetry import passwords_in

_NO_ACCOUNT = (
    "no provider account is configured: set COLLECTIONS_SIMULATOR_URL, or write a"
    " [provider_accounts.NAME] table in the file that COLLECTIONS_CONFIG names"
)

WebhookSecrets = Annotated[
    SecretStr, AfterValidator(lambda s: signatures.keys(s.get_secret_value()) and s)
]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ProviderAccount(_Frozen):
    """One provider account; what it leaves None of the rail's contract stands as announced."""

    kind: Literal["simulator"]
    url: str
    allow_no_lookup: bool = False
    keys: Literal["none", "conflict", "replay"] | None = None
    lookup: Literal["none", "lagging", "strong"] | None = None
    key_retention_seconds: Annotated[int, Field(ge=0)] | None = None
    lookup_lag_seconds: Annotated[int, Field(ge=0)] | None = None
    in_flight_bound_seconds: Annotated[int, Field(ge=0)] | None = None
    replays_5xx: bool | None = None
    represents: bool | None = None
    api_key: SecretStr | None = None
    webhook_secret: WebhookSecrets | None = None

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("needs the form http(s)://host[:port]")
        if parts.username or parts.password or parts.query:
            raise ValueError("must hold no user, password or query; a secret has its own variable")
        return value.rstrip("/")

    @property
    def contract(self) -> dict[str, Any]:
        """What the settings declare of the rail's contract."""
        own = {"keys", "lookup", "replays_5xx", "represents", "key_retention_seconds"}
        own |= {"lookup_lag_seconds", "in_flight_bound_seconds"}
        return self.model_dump(include=own, exclude_none=True)


class Retry(_Frozen):
    """Which declines are tried again, and how many attempts there are in all."""

    soft_codes: frozenset[Annotated[str, Field(min_length=1)]] = DEFAULT_SOFT_CODES
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3


class Calendar(_Frozen):
    """Days on which the rail does not work, and what becomes of due dates on them."""

    holidays: frozenset[date] = frozenset()
    due_convention: Convention = Convention.NONE


CRON = r"^$|^\s*\S+(\s+\S+){4}\s*$"
Cron = Annotated[str, Field(pattern=CRON)]
"""Five fields as cron knows them, in the business zone; empty: never."""


class Daemon(_Frozen):
    """When `collections daemon` starts what; each is a command that cron could start as well."""

    run: Cron = "15 6 * * *"
    recover: Cron = "*/10 * * * *"
    drain: Cron = "* * * * *"
    fund: Cron = "30 5 * * *"
    statement: Cron = "30 8 * * *"
    doctor: Cron = "45 5 * * *"
    report: Cron = ""
    report_file: str = ""
    """Where the report of yesterday is written (HTML); `report` needs it."""
    metrics: Cron = ""
    metrics_file: str = ""
    """Where the figures are written; `metrics` needs it."""


class Settings(_Frozen):
    """All settings; `caps` holds minor units keyed `<account> <currency>`."""

    database_url: SecretStr | None = None
    database_wait_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10
    home: Path
    timezone: str = "UTC"
    environment: str = ""
    gateway_deadline_seconds: Seconds = 30
    lease_seconds: Seconds = 120
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    customer_charges_per_day: Annotated[int, Field(ge=0)] = 0
    breaker_failures: Annotated[int, Field(ge=0)] = 0
    log_level: Literal["auto", "debug", "info", "warning", "error"] = "auto"
    log_format: Literal["auto", "json", "text"] = "auto"
    retry: Retry = Retry()
    calendar: Calendar = Calendar()
    provider_accounts: Mapping[str, ProviderAccount] = Field(default_factory=dict)
    caps: Mapping[str, int] = Field(default_factory=dict)
    wallet: WalletPolicy = WalletPolicy()
    daemon: Daemon = Daemon()

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError, KeyError):
            raise ValueError("is not the name of a time zone, such as Europe/London") from None
        return value

    @field_validator("database_url")
    @classmethod
    def _database(cls, value: SecretStr | None) -> SecretStr | None:
        text = value.get_secret_value() if value else "dbname="
        if not text.startswith(("postgresql://", "postgres://")) and "=" not in text:
            raise ValueError("needs the form postgresql://user@host:port/database")
        return value

    @property
    def retry_policy(self) -> RetryPolicy:
        """The retry rules as the domain knows them."""
        return RetryPolicy(self.retry.soft_codes, self.retry.max_attempts)

    @property
    def default_account(self) -> str | None:
        """The account of imported lines that name none: the only one there is."""
        return next(iter(self.provider_accounts)) if len(self.provider_accounts) == 1 else None

    def require_accounts(self) -> None:
        """Raise SettingsError where no provider account is configured."""
        if not self.provider_accounts:
            raise SettingsError([_NO_ACCOUNT])

    def secret_texts(self) -> frozenset[str]:
        """Every secret as a text, for whoever must keep them out of what is written."""
        url = self.database_url.get_secret_value() if self.database_url else ""
        held = [s for a in self.provider_accounts.values() for s in (a.api_key, a.webhook_secret)]
        texts = {secret.get_secret_value() for secret in held if secret}
        each = {part.removeprefix(signatures.PREFIX) for text in texts for part in text.split(",")}
        return frozenset(passwords_in(url) | texts | each)
