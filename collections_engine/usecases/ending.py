"""Which payments of an open request are over for good, so that people may close it (P13, P15)."""

from __future__ import annotations

from dataclasses import replace

from collections_engine.domain.gateway import Lookup, PaymentStatus, ProviderPayment
from collections_engine.domain.reconcile import Situation


def without_what_is_over(view: Situation, lookup: Lookup) -> tuple[Situation, Lookup, list[str]]:
    """Leave out the open request's own payments that can never hold money again.

    Those are declined for good but with other fields than the request's, or misfits that are booked
    and were refunded in full: `decide` stops for both, and only people can say that they are the
    end. Everything else is judged as it is. The last value: the payments that were left out.
    """
    over = [
        p
        for p in lookup.payments
        if view.owner(p) is view.request and not p.confirmable and _is_over(view, p)
    ]
    gone = {p.key for p in over}
    if not gone:
        return view, lookup, []
    r = view.request
    request = replace(
        r,
        own_payments=r.own_payments - gone,
        named_payments=r.named_payments - gone,
        provider_object_id=(
            None if (r.provider_account, r.provider_object_id) in gone else r.provider_object_id
        ),
    )
    rest = tuple(p for p in lookup.payments if p.key not in gone)
    return (
        replace(view, request=request),
        replace(lookup, payments=rest),
        [p.payment_id for p in over],
    )


def _is_over(view: Situation, p: ProviderPayment) -> bool:
    r, booked = view.request, view.booked.get(p.key)
    fits = (p.amount_minor, p.currency, p.mandate_ref, p.reference, p.provider_account) == (
        r.amount_minor,
        r.currency,
        r.mandate_ref,
        r.reference,
        r.provider_account,
    )
    if p.definitively_declined:
        return not fits and (booked is None or booked.net_minor == 0)
    return (
        booked is not None
        and booked.misfit
        and p.status is PaymentStatus.COLLECTED
        and not p.disputed
        and not booked.dispute_open
        and p.refunded_minor == p.amount_minor == booked.refunded_minor == booked.collected_minor
    )
