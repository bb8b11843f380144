"""Frozen settings from `COLLECTIONS_*` variables over an optional TOML file.

The only reader of the environment. Every fault is found before anything starts and all of them are
reported at once; no message repeats a value that could be a secret. Secrets come from variables,
from the files that `*_FILE` variables name, or from systemd credentials, never from the TOML.
`collections.example.toml` shows every key with its default.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)

from collections_engine.domain.dunning import DEFAULT_SOFT_CODES, RetryPolicy
from collections_engine.domain.errors import SettingsError
from collections_engine.domain.money import MoneyError, parse_amount
from collections_engine.domain.wallet import WalletPolicy, read_policy
from collections_engine.domain.workdays import Convention
from collections_engine.gateways import signatures
from collections_engine.telemetry import passwords_in

PREFIX = "COLLECTIONS_"
TEST_PREFIX = "COLLECTIONS_TEST_"
DEFAULT_FILE = "collections.toml"
SIMULATOR = "simulator"
_ACCOUNT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SECRET_KINDS = ("api_key", "webhook_secret")
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


def debug() -> bool:
    """Whether COLLECTIONS_DEBUG asks for tracebacks."""
    return os.environ.get("COLLECTIONS_DEBUG", "") not in ("", "0")


def simulator_environment() -> dict[str, str]:
    """What the simulator, a program of its own, reads of the environment."""
    names = (f"{PREFIX}SIMULATOR_API_KEY", f"{PREFIX}SIMULATOR_WEBHOOK_SECRET")
    return {name: os.environ[name] for name in names if name in os.environ}


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read file and environment; raises SettingsError with every fault."""
    return _Reader(os.environ if environment is None else environment).read()


_TABLES = ("retry", "calendar", "provider_accounts", "caps", "wallet")
_SIMPLE = tuple(n for n in Settings.model_fields if n not in ("database_url", *_TABLES))
_OTHER = ("CONFIG", "DEBUG", "DATABASE_URL", "DATABASE_URL_FILE", "SIMULATOR_URL")


class _Reader:
    """One reading: values gathered from everywhere, and the faults found on the way."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.env = environment
        self.faults: list[str] = []
        self.origin: dict[str, str] = {}

    def read(self) -> Settings:
        table = self._file()
        values: dict[str, Any] = {}
        for key in sorted(set(table) - set(Settings.model_fields)):
            self._unknown(f"the TOML key {key}", key, list(Settings.model_fields))
        for key in _SIMPLE:
            variable = PREFIX + key.upper()
            if variable in self.env:
                values[key], self.origin[key] = self.env[variable], variable
                if not self.env[variable].strip() and key != "environment":
                    self.faults.append(f"{variable} is set but empty; set it or unset it")
                    del values[key]
            elif key in table:
                values[key] = table[key]
        values["home"] = Path(str(values.get("home") or _default_home(self.env))).expanduser()
        values |= {key: table[key] for key in ("retry", "calendar") if key in table}
        if (url := self._database_url(table)) is not None:
            values["database_url"] = url
        accounts = self._accounts(table)
        self._check_variables(accounts)
        values["caps"] = self._caps(table, accounts)
        values["wallet"] = read_policy(table.get("wallet", {}), self.faults)
        return self._made(values, accounts)

    def _made(self, values: dict[str, Any], accounts: dict[str, dict[str, Any]]) -> Settings:
        made = {}
        for name, fields in accounts.items():
            try:
                made[name] = ProviderAccount(**fields)
            except ValidationError as error:
                self._collect(error, f"provider_accounts.{name}.", ProviderAccount)
        try:
            settings = Settings(**values, provider_accounts=made)
        except ValidationError as error:
            self._collect(error, "", Settings)
            raise SettingsError(self.faults) from None
        if settings.gateway_deadline_seconds >= settings.lease_seconds:
            self.faults.append(
                "COLLECTIONS_GATEWAY_DEADLINE_SECONDS must be below COLLECTIONS_LEASE_SECONDS:"
                f" {settings.gateway_deadline_seconds:g} is not below {settings.lease_seconds:g}"
            )
        held = {n: a.webhook_secret.get_secret_value() for n, a in made.items() if a.webhook_secret}
        self.faults += signatures.shared(held)
        if self.faults:
            raise SettingsError(self.faults)
        return settings

    def _collect(self, error: ValidationError, where: str, model: type[BaseModel]) -> None:
        for each in error.errors(include_url=False, include_input=False, include_context=False):
            names = [str(part) for part in each["loc"]]
            path = where + ".".join(names)
            if each["type"] == "extra_forbidden":
                inner = Calendar if names[0] == "calendar" else model
                fields = (Retry if names[0] == "retry" else inner).model_fields
                self._unknown(f"the TOML key {path}", names[-1], list(fields))
            else:
                text = each["msg"].removeprefix("Value error, ")
                self.faults.append(f"{self.origin.get(path, path)}: {text}")

    def _unknown(self, what: str, name: str, known: Sequence[str]) -> None:
        near = "".join(get_close_matches(name, known, n=1, cutoff=0.5))
        self.faults.append(f"{what} is not known{f'; did you mean {near}?' if near else ''}")

    def _file(self) -> dict[str, Any]:
        named = self.env.get(f"{PREFIX}CONFIG")
        if named is not None and not named.strip():
            self.faults.append(f"{PREFIX}CONFIG is set but empty; name a file or unset it")
            return {}
        path = Path(named or DEFAULT_FILE)
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if named is not None:
                self.faults.append(f"{PREFIX}CONFIG names {path}, which does not exist")
        except OSError as error:
            self.faults.append(f"{path} cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            self.faults.append(f"{path} is not UTF-8")
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"line \d+, column \d+|end of document", str(error))
            self.faults.append(f"{path} is not valid TOML ({place[0] if place else 'unreadable'})")
        return {}

    def _secret(self, variable: str, credential: str) -> str | None:
        file_variable = f"{variable}_FILE"
        if variable in self.env and file_variable in self.env:
            self.faults.append(f"{variable} and {file_variable} are both set; unset one")
            return None
        if variable in self.env:
            return self._not_empty(variable, self.env[variable])
        if file_variable in self.env:
            return self._secret_file(file_variable, Path(self.env[file_variable]))
        if folder := self.env.get("CREDENTIALS_DIRECTORY"):
            path = Path(folder) / credential
            if path.exists():
                return self._secret_file(f"the credential {credential}", path)
        return None

    def _secret_file(self, what: str, path: Path) -> str | None:
        try:
            many = "," if "webhook_secret" in what.lower() else "\n"  # one to a line, in a rotation
            lines = path.read_text(encoding="utf-8").rstrip("\r\n").splitlines()
            return self._not_empty(what, many.join(lines))
        except (OSError, ValueError):
            self.faults.append(f"{what} names a file that cannot be read")
            return None

    def _not_empty(self, what: str, value: str) -> str | None:
        if not value.strip():
            self.faults.append(f"{what} is set but empty; set it or unset it")
            return None
        if not value.isprintable() or value != value.strip():
            self.faults.append(f"{what} has a space or line break at its ends, or within")
            return None
        return value

    def _database_url(self, table: dict[str, Any]) -> str | None:
        name = f"{PREFIX}DATABASE_URL"
        self.origin["database_url"] = name
        if (found := self._secret(name, "database_url")) is not None or name in self.env:
            return found
        given, self.origin["database_url"] = table.get("database_url"), "database_url"
        if given is not None and (not isinstance(given, str) or not given.strip()):
            self.faults.append("database_url is empty; leave it out for the embedded server")
        elif given is not None and passwords_in(given):
            self.faults.append(f"database_url in the TOML holds a password; it belongs in {name}")
        else:
            return given
        return None

    def _accounts(self, table: dict[str, Any]) -> dict[str, dict[str, Any]]:
        accounts: dict[str, dict[str, Any]] = {}
        given = table.get("provider_accounts", {})
        for name, fields in given.items() if isinstance(given, dict) else [("", None)]:
            if not isinstance(fields, dict) or not _ACCOUNT_NAME.fullmatch(name):
                self.faults.append(
                    "provider_accounts holds tables [provider_accounts.NAME], each name of lower-"
                    f"case letters, digits, - and _; {name or 'it'} is none"
                )
                continue
            accounts[name] = dict(fields)
            for kind in _SECRET_KINDS:
                if accounts[name].pop(kind, None) is not None:
                    self.faults.append(
                        f"provider_accounts.{name}.{kind} is a secret and must not be in the TOML;"
                        f" it belongs in {variable_of(name, kind)}"
                    )
        url = f"{PREFIX}SIMULATOR_URL"
        if url in self.env and (address := self._not_empty(url, self.env[url])):
            accounts.setdefault(SIMULATOR, {"kind": "simulator"})["url"] = address
            self.origin[f"provider_accounts.{SIMULATOR}.url"] = url
        variables = [variable_of(name, "") for name in accounts]
        if len(set(variables)) < len(variables):
            self.faults.append("two provider accounts differ in - and _ only; rename one")
        for name, fields in accounts.items():
            for kind in _SECRET_KINDS:
                if secret := self._secret(variable_of(name, kind), f"{name}_{kind}"):
                    fields[kind] = secret
                    self.origin[f"provider_accounts.{name}.{kind}"] = variable_of(name, kind)
        return accounts

    def _check_variables(self, accounts: Mapping[str, Any]) -> None:
        known = {PREFIX + name for name in (*(k.upper() for k in _SIMPLE), *_OTHER)}
        for name in (*accounts, SIMULATOR):
            own = {variable_of(name, kind) for kind in _SECRET_KINDS}
            known |= own | {f"{variable}_FILE" for variable in own}
        for name in sorted(self.env):
            if name.startswith(PREFIX) and not name.startswith(TEST_PREFIX) and name not in known:
                self._unknown(f"the variable {name}", name, sorted(known))

    def _caps(self, table: dict[str, Any], accounts: Mapping[str, Any]) -> dict[str, int]:
        caps: dict[str, int] = {}
        given = table.get("caps", {})
        for name, amounts in given.items() if isinstance(given, dict) else [("", None)]:
            if name not in accounts or not isinstance(amounts, dict):
                self.faults.append(f"caps.{name}: no such provider account, or not a table")
                continue
            for currency, amount in amounts.items():
                try:
                    text = amount if isinstance(amount, str) else ""
                    caps[f"{name} {currency}"] = parse_amount(text, currency)
                except MoneyError as error:
                    why = str(error) if isinstance(amount, str) else 'is no text such as "5000.00"'
                    self.faults.append(f"caps.{name}.{currency} {why}")
        return caps


def variable_of(account: str, kind: str) -> str:
    """Return the variable that holds an account's secret."""
    return f"{PREFIX}{account.upper().replace('-', '_')}_{kind.upper()}"


def _default_home(environment: Mapping[str, str]) -> Path:
    own = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path("/var/lib" if os.geteuid() == 0 else own) / "collections"


def child_environment(values: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child, its own `COLLECTIONS_*` replaced by these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIONS_")}
    return {**kept, **values}
