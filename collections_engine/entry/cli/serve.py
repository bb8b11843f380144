"""`collections serve`: webhooks, the API, health checks and metrics over HTTP."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from collections_engine.domain.errors import SettingsError, UsageError
from collections_engine.entry.cli.app import command_options, example, load_settings, open_engine
from collections_engine.entry.cli.output import write

if TYPE_CHECKING:
    from collections_engine.settings import Settings

DEFAULT_PORT = 8080
_NEEDS = ("falcon", "waitress", "prometheus_client")


@click.command(
    epilog=example(
        "collections serve --port 8080",
        "curl http://127.0.0.1:8080/readyz",
    )
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 picks a free one.",
)
@click.option(
    "--drain/--no-drain",
    default=True,
    show_default=True,
    help="Apply stored events here; without it `webhooks drain` or another process does.",
)
@command_options
def serve(host: str, port: int, *, drain: bool) -> int:
    """Serve until SIGTERM or Ctrl-C; requests that have come in are answered first.

    The first line on standard output is one JSON object with the URL. Webhooks of an account are
    taken at /webhooks/ACCOUNT once its secret is set; TLS is for a proxy in front.
    """
    check_extra()
    _check_secrets(load_settings())
    with open_engine(need_gateways=True) as engine:
        from collections_engine.entry.web import server

        listener = server.listen(host, port)

        def ready(url: str) -> None:
            write(json.dumps({"event": "serve.ready", "url": url}) + "\n")

        server.serve(engine, listener, drain=drain, ready=ready)
    return 0


def _check_secrets(settings: Settings) -> None:
    """Raise SettingsError where no account could ever be believed."""
    from collections_engine.settings import variable_of

    settings.require_accounts()
    accounts = settings.provider_accounts
    if not any(account.webhook_secret for account in accounts.values()):
        names = ", ".join(variable_of(name, "webhook_secret") for name in accounts)
        raise SettingsError([f"no provider account has a webhook secret: set {names}"])


def check_extra() -> None:
    """Raise UsageError unless the extra `web` is installed."""
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        raise UsageError(
            f"the service needs packages that are not installed ({', '.join(missing)}); nothing"
            " was started. Install them: pip install 'collections-engine[web]'"
        )
