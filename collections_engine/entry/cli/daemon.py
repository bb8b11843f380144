"""`collections daemon`: the jobs on a schedule of our own, for hosts without cron."""

from __future__ import annotations

import click

from collections_engine.entry.cli.app import command_options, example, load_settings
from collections_engine.entry.cli.output import emit, table


@click.command(epilog=example("collections daemon", "collections daemon --show"))
@click.option("--show", is_flag=True, help="Print what would be started next and when, and end.")
@command_options
def daemon(*, show: bool) -> int:
    """Start run, recover, drain and the others by the [daemon] schedule, until SIGTERM.

    Each job is the command that cron would start. Exit 0 after an orderly end; jobs under way
    finish what they have begun.
    """
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from collections_engine import telemetry
    from collections_engine.entry.daemon import Daemon, Manager, jobs
    from collections_engine.settings import service_manager

    settings = load_settings()
    todo = jobs(settings.daemon.model_dump(), settings.timezone)
    settings.require_accounts()
    if show:
        now = datetime.now(ZoneInfo(settings.timezone))
        rows = [
            (job.name, job.trigger.get_next_fire_time(None, now), " ".join(job.arguments))
            for job in todo
        ]
        document = [{"job": name, "next": at, "command": said} for name, at, said in rows]
        emit(document, table(["job", "next", "command"], rows))
        return 0
    address, patience = service_manager()
    log = telemetry.get_logger()
    Daemon(todo, settings.home, log.info, Manager(address)).serve(patience)
    return 0
