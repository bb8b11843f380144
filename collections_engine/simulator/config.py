"""Start-up configuration: options, secrets from the environment, and the faults file."""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from collections_engine.simulator.capabilities import Capabilities
from collections_engine.simulator.message import JsonObject
from collections_engine.simulator.signing import WebhookSigner

API_KEY_VARIABLE = "COLLECTIONS_SIMULATOR_API_KEY"
WEBHOOK_SECRET_VARIABLE = "COLLECTIONS_SIMULATOR_WEBHOOK_SECRET"  # noqa: S105 - a variable's name
DEFAULT_PORT = 8765
LARGEST_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What may be changed while the simulator runs, by ``POST /control/settings``.

    ``webhook_clock``: whose time ``webhook-timestamp`` carries; "system" lets receivers that
    check freshness by wall time accept webhooks while the simulator's clock is elsewhere.
    """

    page_size: int = 100
    latency_ms: int = 0
    webhook_url: str | None = None
    webhook_clock: str = "system"
    webhook_retry_seconds: tuple[float, ...] = (0.2, 1.0, 5.0, 30.0)

    def check(self) -> None:
        """Raise ValueError for a value that cannot work."""
        if not _whole(self.page_size) or not 1 <= self.page_size <= LARGEST_PAGE:
            raise ValueError("page_size must be a whole number from 1 to 10000")
        if not _whole(self.latency_ms) or self.latency_ms < 0:
            raise ValueError("latency_ms must be a whole number, 0 or more")
        if self.webhook_clock not in ("system", "simulator"):
            raise ValueError("webhook_clock must be system or simulator")
        if not all(_pause(pause) for pause in self.webhook_retry_seconds):
            raise ValueError("webhook_retry_seconds must be a list of seconds, 0 or more")
        if self.webhook_url is not None:
            parts = urlsplit(self.webhook_url)
            if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
                raise ValueError("webhook_url must be http:// on a loopback address")


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """How a simulator starts. Secrets never come from the command line.

    ``seed`` fixes the ids that payments get, so that the same calls give the same books.
    ``faults`` is a document of the faults file's form (see the package docstring).
    """

    port: int = 0
    host: str = "127.0.0.1"
    state: Path | None = None
    seed: int | None = None
    api_key: str | None = field(default=None, repr=False)
    webhook_secret: str | None = field(default=None, repr=False)
    settings: Settings = field(default_factory=Settings)
    capabilities: Capabilities = field(default_factory=Capabilities)
    faults: JsonObject = field(default_factory=dict)
    exit_on_stdin_close: bool = False

    def check(self) -> None:
        """Raise ValueError for a configuration that must not start."""
        if not is_loopback(self.host):
            raise ValueError("the simulator listens on loopback addresses only")
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError(f"{API_KEY_VARIABLE} is set but empty")
        self.settings.check()
        if self.webhook_secret is not None:
            WebhookSigner(self.webhook_secret)
        elif self.settings.webhook_url is not None:
            raise ValueError(f"a webhook URL needs {WEBHOOK_SECRET_VARIABLE}")


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_faults_file(path: Path) -> JsonObject:
    """The TOML document of a faults file. Raises ValueError or OSError."""
    with path.open("rb") as stream:
        return tomllib.load(stream)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pause(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
