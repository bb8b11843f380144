"""What each route does: read and check, then one use case.

A GET answers at once. A POST returns its effect, which runs once under the request's key; a refusal
that the effect returns is stored with it, one that is raised before is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

from collections_engine.entry.web import api_views
from collections_engine.entry.web.api_models import (
    NOTHING_DONE,
    Accepted,
    ApiRefusal,
    Created,
    Detail,
    Instalment,
    Nothing,
    Page,
    money,
    parse,
    read,
    read_or_details,
    refusal,
    refuse,
    reply,
)
from collections_engine.store import api, desk
from collections_engine.usecases import collect_now
from collections_engine.usecases.idempotency import Effect, Reply
from collections_engine.usecases.importing import (
    FileFormat,
    ImportOptions,
    ImportRefused,
    import_file,
)
from collections_engine.usecases.startup import identity_for_import
from collections_engine.usecases.steps import retrying

if TYPE_CHECKING:
    from collections_engine.store.db import Connection
    from collections_engine.wiring import Engine

PAGE = 100
NO_INSTALMENT = "There is no instalment of this external_ref or id."
_OPTIONS = ImportOptions(file_format=FileFormat.JSON)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, its token already judged."""

    engine: Engine
    names: Mapping[str, str]
    """What stood in the path."""
    query: Mapping[str, str]
    body: bytes = b""
    effect_key: str = ""
    """Names the effect of a POST for ever: the token and its key, without either's text."""


def create_instalments(call: Call) -> Effect:
    """Create one instalment or a list of them, all or none; again changes nothing."""
    media = parse(call.body)
    lines = media if isinstance(media, list) else [media]
    if not lines:
        refuse(422, "invalid", "The list is empty.")
    faults: list[Detail] = []
    for row, line in enumerate(lines, start=1):
        found = read_or_details(Instalment, line, row)
        faults += found if isinstance(found, list) else []
    if faults:
        message = f"{len(faults)} fault(s) in the instalments."
        raise ApiRefusal(refusal(422, "invalid", message, details=faults))
    settings, engine = call.engine.settings, call.engine
    # Outside the effect: what the interlock finds must last, whatever becomes of the effect (P18).
    own = retrying(
        engine.source, lambda c: identity_for_import(c, settings.environment, dry_run=False)
    )

    def effect(connection: Connection) -> Reply:
        try:
            report = import_file(
                connection,
                BytesIO(call.body),
                _OPTIONS,
                identity=own,
                known_accounts=frozenset(settings.provider_accounts),
                default_account=settings.default_account,
                collect_on=engine.collect_on,
            )
        except ImportRefused as error:
            return refusal(422, "refused", str(error))
        if report.nothing_kept:
            details = [Detail(row=e.row, field=e.column, reason=e.reason) for e in report.errors]
            message = f"{report.rejected} of {report.read} instalment(s) were refused."
            done = "Nothing was created, not even those without a fault."
            return refusal(422, "refused", message, done, details)
        made = Created(
            read=report.read,
            inserted=report.inserted,
            unchanged=report.unchanged,
            amounts={c: money(m, c) for c, m in sorted(report.amounts.items())},
        )
        return reply(201 if report.inserted else 200, made)

    return effect


def show_instalment(call: Call) -> Reply:
    """One instalment."""

    def look(connection: Connection) -> Mapping[str, Any] | None:
        row = desk.find(connection, call.names["ref"])
        return None if row is None else desk.instalment(connection, row)

    found = retrying(call.engine.source, look)
    if found is None:
        return refusal(404, "not_found", NO_INSTALMENT)
    return reply(200, api_views.instalment(found))


def list_instalments(call: Call) -> Reply:
    """A customer's instalments, page by page."""
    customer = call.query.get("customer", "")
    if not customer:
        refuse(400, "bad_query", "Whose? Name the customer: ?customer=REF")
    after = _uuid(call.query.get("cursor") or str(UUID(int=0)))
    if after is None:
        refuse(400, "bad_query", "cursor is none that this API has given.")
    rows = retrying(call.engine.source, lambda c: api.instalments_of(c, customer, after, PAGE + 1))
    data = [api_views.instalment(row) for row in rows[:PAGE]]
    more = data[-1].id if len(rows) > PAGE else None
    return reply(200, Page(data=data, next_cursor=more))


def collect(call: Call) -> Effect:
    """Ask for an instalment to be collected now; every rule of a run applies."""
    if call.body:
        read(Nothing, parse(call.body))
    day, ref = call.engine.today(), call.names["ref"]

    def effect(connection: Connection) -> Reply:
        asked = collect_now.ask(connection, ref, day)
        if asked is None:
            return refusal(404, "not_found", NO_INSTALMENT)
        if isinstance(asked, collect_now.NotCollectable):
            message = f"It is not collected now: {asked.text}."
            return refusal(409, asked.reason, message, "No charge was asked for.")
        return reply(
            202,
            Accepted(
                request_id=asked.request_id,
                instalment_id=asked.instalment_id,
                attempt=asked.attempt,
            ),
        )

    return effect


def show_request(call: Call) -> Reply:
    """Where a payment request stands."""
    wanted = _uuid(call.names["id"])
    found = None
    if wanted is not None:
        found = retrying(call.engine.source, lambda c: api.request_status(c, wanted))
    if found is None:
        message = "There is no request of this id, and none was asked for."
        return refusal(404, "not_found", message, NOTHING_DONE)
    return reply(200, api_views.request(found))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
