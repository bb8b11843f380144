"""Which commands there are, in which file, and in one line what for. Imports nothing."""

from __future__ import annotations

import collections_engine

MODULES = "collections_engine.entry.cli."

COMMANDS: dict[str, tuple[str, str]] = {
    "db": ("db:db", "Set up and look after the database."),
    "import": ("importing:import_command", "Import a schedule of instalments from a file."),
    "run": ("running:run_command", "Collect what is due today."),
    "backfill": ("running:backfill_command", "Collect what was due in a range of dates."),
    "recover": ("running:recover_command", "Look again at everything whose fate is open."),
    "inflight": ("inflight:inflight", "List, show and resolve rows whose fate is open."),
    "instalment": ("instalment:instalment", "Show, hold, cancel or reopen one instalment."),
    "why": ("control:why", "Say why an instalment was or was not collected."),
    "fact": ("fact:fact", "Record a fact about money that a person knows."),
    "refund": ("refund:refund", "Give money back."),
    "mandate": ("mandate:mandate", "Show mandates and set their status."),
    "retry-policy": ("retry_policy:retry_policy", "Show and explain when declines are retried."),
    "pause": ("control:pause", "Stop all charging, or one provider account's."),
    "unpause": ("control:unpause", "Let charging go on."),
    "status": ("control:status", "One glance: what is due, in flight, paused, waiting."),
    "doctor": ("doctor:doctor", "Check the whole set-up and say what to mend."),
    "webhooks": ("webhooks:webhooks", "List, show and replay what providers sent."),
    "serve": ("serve:serve", "Serve webhooks, the API, health checks and metrics."),
    "token": ("token:token", "Create, list and revoke API tokens."),
    "certify": ("certify:certify", "Check that a provider account keeps its contract."),
    "statement": ("statement:statement", "Compare the provider's books with ours."),
    "exceptions": ("exceptions:exceptions", "List, show and resolve what does not match."),
    "wallet": ("wallet:wallet", "Show, credit, debit and fund customer wallets."),
    "report": ("report:report", "Report on a run, a day or a month."),
    "metrics": ("metrics:metrics", "Print figures for monitoring."),
    "daemon": ("daemon:daemon", "Run the same jobs on a schedule, for hosts without cron."),
    "worker": ("worker:worker", "Run a workflow worker."),
    "simulator": ("simulator:simulator", "Serve the gateway simulator."),
    "completion": ("completion:completion", "Print the shell completion script."),
}
"""Name -> (`file:object` in this folder, summary); a command without its file is not shown."""


def available() -> dict[str, tuple[str, str]]:
    """Return the commands that this installation carries."""
    import os.path

    folder = os.path.dirname(__file__)  # noqa: PTH120 - pathlib costs more than the rest of --help
    return {
        name: entry
        for name, entry in COMMANDS.items()
        if os.path.exists(f"{folder}/{entry[0].partition(':')[0]}.py")  # noqa: PTH110 - as above
    }


def overview() -> str:
    """Return what `collections --help` prints."""
    known = available()
    width = max(map(len, known), default=0)
    rows = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in known.items())
    return (
        "Usage: collections COMMAND [OPTIONS] ...\n\n"
        "  Scheduled collections that never charge twice.\n\n"
        f"Commands:\n{rows}\n\n"
        "Options:\n"
        "  --version  Show the version.\n"
        "  --help     Show this text; `collections COMMAND --help` shows a command's.\n\n"
        "Every command takes --json: one JSON document on standard output, logs elsewhere.\n"
        "Exit codes: 0 done, 1 unexpected fault, 2 usage or settings, 3 something needs a person,\n"
        "4 refused by a guard, 75 a dependency is unreachable for now (run again).\n\n"
        "Example:\n"
        "  collections import schedule.csv && collections run\n"
    )


def version_line() -> str:
    """Return what `collections --version` prints."""
    return f"collections {collections_engine.__version__}\n"
