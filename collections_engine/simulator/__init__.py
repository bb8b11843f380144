"""A gateway simulator: a payment rail in its own process, with books of its own.

It speaks the project's gateway wire protocol under ``/v1`` and lets a test or a demonstration
play the rail's part under ``/control``. Its books are the judge of every test: they are
written where money moves and where requests arrive, never from what was answered.

It listens on loopback addresses only; ``/control`` needs no key, ``/v1`` needs the bearer
token in COLLECTIONS_SIMULATOR_API_KEY when one is set.

Reading (GET):
    /control/books      movements (amounts are signed, plus is towards the merchant) and every
                        POST received; ?since_movement=N&since_request=N skip the first ones
    /control/stats      small counts; ``errors`` counts faults of the simulator itself
    /control/payments   all payments as they are, without lag; ?reference=R
    /control/reads      every GET under /v1; ?since=N
    /control/faults     the rules with ``seen`` and ``fired``
    /control/held       calls that wait for a release (``hold`` and ``timeout`` faults)
    /control/late       what waits to be executed later
    /control/webhooks   events with every attempt to deliver them

Driving (POST, JSON):
    /control/clock            {"offset_seconds": 3600} or {"now": "2026-07-01T06:00:00Z",
                              "frozen": true} or {"advance_seconds": 60}
    /control/capabilities     {"keys": "none", "lookup": "lagging", "lookup_lag_seconds": 60};
                              fields not given stay
    /control/settings         page_size, latency_ms, webhook_url, webhook_clock
                              ("system" or "simulator"), webhook_retry_seconds
    /control/faults           {"faults": [...]} replaces all rules, "append": true adds
    /control/payments/{id}    {"action": "settle"}; also decline, fail_late, dispute_open,
                              dispute_win, dispute_lose, refund, cancel, represent; with
                              "amount", "decline_code", "fee"
    /control/by-hand          {"reference", "amount", "currency"}: a payment without request_id;
                              optional mandate, status, decline_code, metadata, created_at
    /control/mandates/{id}    {"status": "cancelled"}
    /control/movements        {"type": "fee" or "payout", "amount", "currency"}
    /control/execute-late     {} all of it, {"reference": R} or {"id": N}
    /control/release          {} all held calls, or by id, reference, mandate, external_ref;
                              "action": "continue" (default) or "drop" (never executed, cut)
    /control/wait             {"for": "held", "count": 1, "timeout_seconds": 5}: answers 200 as
                              soon as that count of /control/stats is reached, else 408;
                              {"for": "fired", "fault": "f1"} waits for a rule
    /control/webhooks/send    {"event_id": E, "count": 2} again, or {"event": {...}} as given
    /control/reset            new books, first capabilities and settings, no faults, wall time;
                              calls that are running are cut and never execute

Faults: each rule has a ``kind``, selectors and options; the first rule that is due wins.
    selectors   on (operation), mandate, reference, external_ref (text, "X-*", or a list),
                attempt, key, resend (the key was seen before), event (webhooks), nth (number or
                list, counted over the calls that the other selectors match), every, skip,
                times, probability with seed
    operations  charge refund cancel prepare confirm | lookup get movements capabilities
                mandate object object_list | webhook
    on writes   moved ("no", "yes", "late"; true and false do too), after_seconds (late, by this
                clock; without it only execute-late), result and decline_code (of what was
                executed), saved ("answer", "payment", "nothing": what the key gives later
                calls), then and then_after_seconds (a step that follows)
    a decision  decline (code), pending
    an answer   timeout (seconds), status (status, body json|html|text|empty, code, retryable,
                retry_after), cut (reset), half_reply (bytes), broken_json, unknown_status
                (word), accepted_empty, wrong_answer (field, value, where answer|books),
                wrong_date (offset_seconds, absent), dribble (pause_ms), slow (delay_ms), hold
                (phase before|after the execution)
    a refusal   rate_limited (retry_after), unauthorized, forbidden, not_found, redirect
                (location), invalid (code), key_in_use, key_expired, parameter_mismatch
    the key     key_ignored
    lookups     lag (seconds), lost_page (mode empty|skip|end), repeated_page, cursor_loop,
                stale (status), two_matches (own), foreign_match (mode add|replace),
                wrong_shape (shape)
    webhooks    duplicate (count), drop, delay (seconds), reorder, bad_signature,
                bad_timestamp (offset_seconds), altered_body, hold

A faults file is TOML of the same form, with optional tables for the rest of the rail:

    [capabilities]
    keys = "replay"
    [settings]
    page_size = 50
    [mandates]
    "MD-9" = "cancelled"
    [[faults]]
    kind = "decline"
    mandate = "MD-SOFT-*"
    code = "insufficient_funds"
"""

from collections_engine.simulator.config import Settings, SimulatorConfig
from collections_engine.simulator.server import SimulatorServer, serve

__all__ = ["Settings", "SimulatorConfig", "SimulatorServer", "serve"]
