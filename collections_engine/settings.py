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
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from collections_engine.domain.errors import SettingsError
from collections_engine.domain.money import MoneyError, parse_amount
from collections_engine.domain.wallet import read_policy
from collections_engine.gateways import signatures
from collections_engine.settings_model import Calendar, Daemon, ProviderAccount, Retry, Settings
from collections_engine.telemetry import passwords_in

__all__ = ["Calendar", "Daemon", "ProviderAccount", "Retry", "Settings", "load"]

PREFIX = "COLLECTIONS_"
TEST_PREFIX = "COLLECTIONS_TEST_"
DEFAULT_FILE = "collections.toml"
SIMULATOR = "simulator"
_ACCOUNT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SECRET_KINDS = ("api_key", "webhook_secret")


def debug() -> bool:
    """Whether COLLECTIONS_DEBUG asks for tracebacks."""
    return os.environ.get("COLLECTIONS_DEBUG", "") not in ("", "0")


def simulator_environment() -> dict[str, str]:
    """What the simulator, a program of its own, reads of the environment."""
    names = (f"{PREFIX}SIMULATOR_API_KEY", f"{PREFIX}SIMULATOR_WEBHOOK_SECRET")
    return {name: os.environ[name] for name in names if name in os.environ}


def service_manager() -> tuple[str | None, float | None]:
    """The socket on which systemd hears of this process, and its watchdog's patience in seconds."""
    address, patience = os.environ.get("NOTIFY_SOCKET"), os.environ.get("WATCHDOG_USEC", "")
    own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    seconds = int(patience) / 1_000_000 if patience.isdigit() and own else None
    return address or None, seconds


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read file and environment; raises SettingsError with every fault."""
    return _Reader(os.environ if environment is None else environment).read()


_TABLES = ("retry", "calendar", "provider_accounts", "caps", "wallet", "daemon")
_SIMPLE = tuple(n for n in Settings.model_fields if n not in ("database_url", *_TABLES))
_OTHER = ("CONFIG", "DEBUG", "DATABASE_URL", "DATABASE_URL_FILE", "SIMULATOR_URL")


_INNER: Mapping[str, type[BaseModel]] = {"retry": Retry, "calendar": Calendar, "daemon": Daemon}


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
        values |= {key: table[key] for key in ("retry", "calendar", "daemon") if key in table}
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
                fields = _INNER.get(names[0], model).model_fields
                self._unknown(f"the TOML key {path}", names[-1], list(fields))
            else:
                text = each["msg"].removeprefix("Value error, ")
                if each["type"] == "string_pattern_mismatch":
                    text = "needs the five fields of a cron line, such as 15 6 * * *, or nothing"
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
