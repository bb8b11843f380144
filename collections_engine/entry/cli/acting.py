"""What the commands of the desk share: who acts, the row that is meant, the context to act in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from collections_engine.domain.errors import UsageError

if TYPE_CHECKING:
    from uuid import UUID

    from collections_engine.usecases.context import Context
    from collections_engine.wiring import Engine

Function = TypeVar("Function", bound=Callable[..., Any])
NEEDS_A_PERSON = 3


def actor_options(function: Function) -> Function:
    """Add `--actor` (a label beside the authenticated person) and `--reason`, both required."""
    reason = click.option("--reason", required=True, help="Why; kept with the fact for ever.")
    actor = click.option(
        "--actor", required=True, help="A name for the record; the log-in itself is recorded too."
    )
    return actor(reason(function))


def ref_argument(function: Function) -> Function:
    """Add the argument REF: an instalment's external_ref or id."""
    return click.argument("ref", metavar="REF")(function)


def row_named(engine: Engine, ref: str) -> UUID:
    """Return the instalment's id; raises NotFoundError."""
    from collections_engine.usecases import asking

    return asking.find(engine.source, ref)


def desk_context(engine: Engine, *, look_only: bool = False) -> Context:
    """Build the context; an act is refused on a copy of the database (P18), a look is not."""
    from collections_engine.store import identity
    from collections_engine.usecases import interlock

    connection = engine.connect()
    if look_only:
        found = identity.identity(connection)
        if found is None:
            raise UsageError(
                "this database has no identity yet: nothing was ever imported or run."
                " Import a schedule first: collections import FILE"
            )
    else:
        interlock.check_durable(connection)
        found = interlock.check_identity(connection, engine.settings.environment, create=False)
    return engine.context(engine.today(), found, recognised=not look_only)
