"""`collections metrics`: the figures for monitoring, on standard output or as a textfile."""

from __future__ import annotations

from pathlib import Path

import click

from collections_engine.domain.errors import Unavailable
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit, replace
from collections_engine.entry.cli.serve import check_extra


@click.command(
    epilog=example(
        "collections metrics",
        "collections metrics --textfile /var/lib/node_exporter/textfile/collections.prom",
    )
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write there, whole or not at all, for the node exporter's textfile collector.",
)
@click.option(
    "--checks",
    is_flag=True,
    help="Run the invariants of sql/checks too; their cost grows with the books.",
)
@command_options
def metrics(textfile: Path | None, *, checks: bool) -> int:
    """Print what `/metrics` of the service tells of the database; changes nothing.

    Exit 75 when the database is out of reach: the file then says collections_database_up 0.
    """
    check_extra()
    from collections_engine.entry.web.figures import stored_text
    from collections_engine.store.explaining import explained
    from collections_engine.usecases import figures
    from collections_engine.usecases.figures import Family

    found: list[Family] = []
    unreachable: Unavailable | None = None
    try:
        with open_engine(readonly=True) as engine:
            day = engine.today()
            found = engine.source.run(lambda c: figures.read(c, day, with_checks=checks))
    except Exception as error:
        known = error if isinstance(error, Unavailable) else explained(error)
        if not isinstance(known, Unavailable):
            raise
        unreachable = known

    def told() -> list[Family]:
        if unreachable is not None:
            raise unreachable
        return found

    text, up = stored_text(told)
    if textfile is not None:
        replace(textfile, text)
    document = {
        "database_up": up,
        "metrics": [
            {
                "name": family.name,
                "help": family.help,
                "type": family.kind,
                "samples": [
                    {"labels": dict(zip(family.labels, labels, strict=True)), "value": value}
                    for labels, value in family.samples
                ],
            }
            for family in found
        ],
    }
    emit(document, f"Written: {textfile}" if textfile else text.decode())
    return 0 if up else Unavailable.exit_code
