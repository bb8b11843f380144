"""Planted bugs of claim, permit, send and release (P1-P8)."""

# ruff: noqa: E501 - a planted text is shown as it stands in its place
from __future__ import annotations

from collections_engine.domain import reconcile
from collections_engine.gateways import http, wire
from collections_engine.store import claims
from collections_engine.usecases import collect, recording, recover
from tests.simulation.planting import Body, Bug, Ddl, Line, Query

CLAIM = "a row is worked on that must rest"


def _claim(name: str, old: str, new: str, why: str) -> Bug:
    return Bug(name, "P1", why, (Query("claim", "claim", old, new),))


def _pick(name: str, old: str, new: str, picked: str, why: str = CLAIM) -> Bug:
    """The pick leaves such rows out already: they get past it only in a race."""
    changes = (Query("claim", "claim", old, new), Query("pick", "due", picked, new))
    return Bug(name, "P1", why, changes, "the pick")


def _permit(name: str, old: str, new: str, why: str) -> Bug:
    return Bug(name, "P4", why, (Body("permit", old, new),))


def _unseen(name: str, old: str, new: str, why: str, sign: str) -> Bug:
    """What stands there came as a fact, and is seen as one."""
    seen = Body("permit", "AND i.facts_seen = a.facts", "")
    return Bug(name, "P4", why, (Body("permit", old, new), seen), "facts_seen", sign)


NO_TRIGGER = Ddl("ALTER TABLE instalments DISABLE TRIGGER instalments_guard")
_AGE = "(engine_now() >= r.sent_at AND engine_now() < r.sent_at + a.resend_window)"
_EVERY = "= (SELECT count(*) FROM permits p WHERE p.request_id = r.id)"

BUGS = [
    _claim("claim without the lease", "OR i.lease_until < engine_now()", "OR true",
           "a living worker's row is taken from under it"),
    _pick("claim that ignores a hold", "AND NOT i.on_hold", "", "AND NOT on_hold"),
    _pick("claim that ignores a chargeback", "AND NOT i.has_open_chargeback", "",
          "AND NOT has_open_chargeback"),
    _pick("claim of a reviewed row", "AND i.review_reason IS NULL", "",
          "AND review_reason IS NULL"),
    _pick("claim before its day", "AND i.collect_date <= %(day)s::date",
          "AND %(day)s::date IS NOT NULL", "AND queue_date <= %(day)s::date",
          "a retry goes out before its day"),
    _claim("claim keeps the old amount", "THEN excluded.amount ELSE", "THEN old.amount ELSE",
           "a part paid by hand makes the request ask for what is not owed"),
    _permit("permit without facts_seen", "AND i.facts_seen = a.facts", "",
            "a fact that landed during the lookup is not seen"),
    _unseen("permit under an open chargeback", "AND NOT i.has_open_chargeback", "",
            "a disputed customer is charged", "a chargeback was open"),
    _permit("permit without a living lease", "AND i.lease_until > engine_now()", "",
            "two workers hold permits for one row"),
    _unseen("permit for another amount", "AND i.outstanding_amount = r.amount", "",
            "what was paid by hand meanwhile is charged again", "not what is owed"),
    _permit("permit under a hold", "AND NOT i.on_hold", "", "a hold holds nothing"),
    _permit("permit under a pause",
            "AND NOT everything.paused AND account.paused IS FALSE", "", "a pause stops nothing"),
    _permit("permit without a mandate", "AND m.status = 'active'", "",
            "a customer is charged without a mandate"),
    _unseen("permit of a reviewed row", "AND i.review_reason IS NULL", "",
            "a row that a person must see first is charged", "under review"),
    Bug("permit under another claim", "P4", "a late writer sends beside the new owner",
        (Body("permit", "AND i.claim_token = a.token\n       AND i.lease", "AND i.lease"),
         Body("permit", "AND i.lease_until > engine_now()", ""),
         Body("permit", "AND i.facts_seen = a.facts", "")), "lease and facts_seen"),
    Bug("permit id new on each repeat", "P4", "a lost answer uses up a sending nobody makes",
        (Line(claims.permit, "[a.permit_id for a in asks]",
              "[__import__('uuid').uuid4() for a in asks]"),)),
    Bug("sent before the permit was seen", "P4", "money moves without a durable permit",
        (Line(collect._send, "permit = context.steps.permit(PermitAsk(claim, context.new_id(), seen,"
              " body, window))", "channel.charge(claim.request.idempotency_key, body, deadline); "
              "permit = context.steps.permit(PermitAsk(claim, context.new_id(), seen, body, window))"),)),
    Bug("a second sending at any age", "P4", "an expired key executes again",
        (Body("permit", _AGE, "true"),
         Line(reconcile._resend_or_stop, "and r.sent_at <= s.now < r.sent_at + window", "")),
        "decide and permit both ask for the age"),
    Bug("a second sending on a rail without keys", "P12", "the rail executes it twice",
        (Body("permit", _AGE, "true"),
         Line(reconcile._resend_or_stop, "if key_lives or", "if True or")),
        "decide and permit both ask for the key"),
    Bug("one refusal frees all sendings", "P7", "an earlier sending may have moved money",
        (Body("permit", _EVERY, "> 0"),
         Line(reconcile._resend_or_stop, "r.all_not_processed", "r.not_processed > 0")),
        "decide and permit both count the answers"),
    Bug("clocks are not compared", "P12", "a key's age is judged by a wrong clock",
        (Line(reconcile._clocks_agree, "lookup.provider_time is not None and (", "True or ("),)),
    Bug("a retry loop around the send", "P5", "an earlier send hides behind a later answer",
        (Line(collect._send, "answer = channel.charge(permit.key, permit.body, deadline)",
              "answer = channel.charge(permit.key, permit.body, deadline)\n"
              "    if answer.kind.value == 'ambiguous':\n        channel.ensure_open()\n"
              "        answer = channel.charge(permit.key, permit.body, deadline)"),)),
    Bug("a process that wakes late sends", "P5", "its permit is over, another may have one",
        (Line(http.HttpConnection.exchange, "if deadline - boottime() <= 0:", "if False:"),
         Line(http._left, "if left <= 0:", "left = max(left, 5.0)\n    if False:")),
        "each write asks for the time"),
    Bug("a key of its own for each sending", "P4", "no rail recognises the repeat",
        (Line(collect._send, "channel.charge(permit.key,",
              "channel.charge(permit.key + '-' * (permit.sendings - 1),"),)),
    Bug("other bytes under the same key", "P5", "the rail refuses or takes another order",
        (Line(collect._send, "permit.body, deadline)",
              "permit.body + b' ' * (permit.sendings - 1), deadline)"),)),
    Bug("release of a permitted row", "P8", "the row reopens while money may be moving",
        (Body("release_claims", "AND i.sendings = 0", ""),
         Body("release_claims", "claimed_by = NULL, claim_token", "sendings = 0, claimed_by = NULL, claim_token"),
         NO_TRIGGER), "the guard of instalments"),
    Bug("release under another claim", "P8", "a late writer frees the new owner's row",
        (Body("release_claims", "\n     AND i.claim_token = a.token AND i.sendings = 0;",
              "\n     AND i.sendings = 0;"),)),
    Bug("recovery sends on a reviewed row", "P17", "a person is overtaken",
        (Line(recover._work, "and row.review_reason is None", ""),
         Query("claim", "claim", "AND i.review_reason IS NULL", ""),
         Body("permit", "AND i.review_reason IS NULL", "")), "claim and permit"),
    Bug("recovery forgets accepted rows", "P17", "a row stays submitted for ever",
        (Query("pick", "open_rows", "i.status IN ('in_flight', 'submitted')",
               "i.status = 'in_flight'"),)),
    Bug("the next look is put off for ever", "P7", "a row lies in limbo",
        (Line(recording.leave, "when = max(at, claim.lease_until) if at else claim.lease_until",
              "when = claim.lease_until.replace(year=2100)"),)),
    Bug("a server error counts as a refusal", "P7", "a 5xx proves nothing: money may have moved",
        (Line(wire.answer, "if reply.status in (400, 404, 409, 422):",
              "if reply.status in (400, 404, 409, 422, 500, 502, 503, 504):"),
         Line(wire._refused, "if reply.status in (400, 404, 422) and",
              "if reply.status != 409 and"))),
    Bug("a refusal counts on a second sending", "P7", "the first one may have moved money",
        (Body("settle_refused", "OR r.sendings <> 1", ""),)),
    Bug("a 2xx settles by itself", "P7", "what the answer says is not in the provider's books",
        (Line(recording._payment, "if answer.replayed or payment.status is PaymentStatus.COLLECTED:",
              "if False:"),)),
]  # fmt: skip
