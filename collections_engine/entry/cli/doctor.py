"""`collections doctor`: check the whole set-up and say what to mend."""

from __future__ import annotations

import click

from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit, table


@click.command(epilog=example("collections doctor"))
@command_options
def doctor() -> int:
    """Check books, rows, server, clocks and gateways; changes nothing.

    Exit 0: healthy. 3: something needs a person. 4: an invariant of the money is broken.
    """
    from collections_engine.usecases.doctor import Severity, diagnose, exit_code

    with open_engine(readonly=True, any_schema=True) as engine:
        found = diagnose(engine.connect(), engine.connect(), engine.gateways, engine.today())
    code = exit_code(found)
    rows = [(f.severity.value, f.check, f.subject, f.text, f.fix) for f in found]
    ends = {
        0: "Healthy.",
        3: "Something needs a person; nothing is wrong with the money.",
        4: "An invariant of the money is broken. Stop charging: collections pause --reason books",
    }
    document = {
        "healthy": code == 0,
        "findings": found,
        "broken": sum(f.severity is Severity.BROKEN for f in found),
    }
    emit(document, table(["", "check", "about", "finding", "what to do"], rows), ends[code])
    return code
