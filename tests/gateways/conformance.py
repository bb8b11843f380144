"""What every gateway adapter must do, written against the port alone (`domain/gateway.py`).

An adapter's test module makes an `account` fixture (an `Account`: the adapter, and a driver of the
provider's side) and a class that inherits `GatewayConformance`. What a rail cannot do, its
contract says; the suite asks for no more than the contract promises, and for nothing less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import pytest

from collections_engine.domain.gateway import (
    NOT_PROCESSED_KINDS,
    Answer,
    AnswerKind,
    ChargeOrder,
    Gateway,
    GatewayUnreachable,
    Keys,
    Lookup,
    LookupKind,
    LookupQuestion,
    PaymentStatus,
)
from collections_engine.domain.request import reference
from collections_engine.gateways.http import boottime

IDENTITY, STRANGER = "abcdefghijklmnop", "ponmlkjihgfedcba"
ORDER = ChargeOrder(
    request_id=UUID(int=7),
    attempt=1,
    external_ref="i-1",
    reference=reference(IDENTITY, UUID(int=1)),
    amount_minor=4900,
    currency="GBP",
    mandate_ref="MD-1",
)
QUESTION = LookupQuestion((ORDER.reference,), "i-1", ("MD-1",), (), IDENTITY)
SECRET = "canary-7f3a"

AMBIGUOUS = [
    *("server_error", "server_error_moved", "cut", "cut_moved", "half_reply", "broken_json"),
    *("wrong_shape", "unknown_word", "accepted_empty", "redirect", "no_answer", "key_expired"),
    *("conflict_unnamed_code", "proxy_page"),
]
"""Endings of a charge that prove nothing; the driver knows how to bring each about."""
MOVED = {"server_error_moved", "cut_moved", "half_reply", "broken_json", "wrong_shape"}
MOVED |= {"unknown_word", "accepted_empty", "no_answer"}
SPOILT = [
    *("server_error", "no_answer", "cut", "half_reply", "broken_json", "not_an_object"),
    *("no_list", "missing_fields", "float_amount", "cursor_loop", "rate_limited", "unauthorised"),
    *("redirect",),
]
"""Faults of a lookup after which it is not complete."""


@dataclass(frozen=True, slots=True)
class Post:
    """A charge as it came over the wire."""

    key: str | None
    body: bytes


class OtherSide(Protocol):
    """Drives the provider: what it answers next, and what its own books say."""

    def ending(self, name: str) -> None:
        """Bring about this ending of the next charge: a status, or a word of `AMBIGUOUS`."""
        ...

    def spoil(self, name: str) -> None:
        """Spoil the next lookup: a word of `SPOILT`, `unknown_word` or `no_date`."""
        ...

    def by_hand(self, order: ChargeOrder, count: int = 1) -> list[str]:
        """Make payments under a reference without a request; their ids."""
        ...

    def pages_of(self, size: int) -> None:
        """Show lists in pages of this size."""
        ...

    def pass_lag(self) -> None:
        """Let the time pass after which lookups show everything."""
        ...

    def now(self) -> datetime:
        """The provider's clock."""
        ...

    def posts(self) -> Sequence[Post]:
        """Every POST that reached the provider, on whatever path."""
        ...

    def gets(self) -> int:
        """How many GETs reached the provider."""
        ...

    def moved(self, order: ChargeOrder) -> list[int]:
        """The amounts that moved under the order's reference."""
        ...


@dataclass(frozen=True, slots=True)
class Account:
    """A provider account: the adapter to test, and the other side of its wire."""

    gateway: Gateway
    other: OtherSide
    again: Callable[[], Gateway]
    """Makes the adapter of the same account anew, with a deadline of 0.4 s."""
    as_other: Callable[[str], Gateway]
    """Makes the adapter of another account (`account`) or of the other mode (`mode`)."""
    nowhere: Gateway
    """The adapter of an address where nobody listens."""

    def charge(
        self, order: ChargeOrder = ORDER, key: str = "k1", within: float = 5.0
    ) -> tuple[Answer, bytes]:
        """Charge on a channel of its own; the answer and the bytes that were sent."""
        channel, body = self.gateway.open(), self.gateway.build_body(order)
        try:
            return channel.charge(key, body, boottime() + within), body
        finally:
            channel.close()

    def lookup(self, question: LookupQuestion = QUESTION, gateway: Gateway | None = None) -> Lookup:
        """Look up on a channel of its own."""
        channel = (gateway or self.gateway).open()
        try:
            return channel.lookup(question)
        finally:
            channel.close()


class GatewayConformance:
    """The suite; inherit it in a class that pytest collects."""

    # ------------------------------------------------------------ the charge

    def test_the_same_order_always_gives_the_same_bytes(self, account: Account) -> None:
        """Also in another process's adapter; another order gives others."""
        body = account.gateway.build_body(ORDER)
        assert (
            body == account.again().build_body(replace(ORDER)) == account.nowhere.build_body(ORDER)
        )
        assert body != account.gateway.build_body(replace(ORDER, amount_minor=4901))
        assert body

    def test_what_is_sent_is_what_was_given_once(self, account: Account) -> None:
        """One POST with this key and these very bytes."""
        _, body = account.charge(key="col-1")
        assert account.other.posts() == [Post("col-1", body)]

    @pytest.mark.parametrize("word", ["collected", "pending", "declined"])
    def test_an_answered_payment_is_the_order_s(self, account: Account, word: str) -> None:
        """Every field that will be compared comes back; a decline has its code and its finality."""
        account.other.ending(word)
        found, _ = account.charge()
        paid = found.payment
        assert (found.kind, found.replayed) == (AnswerKind.PAYMENT, False)
        assert paid is not None
        assert paid.provider_account == account.gateway.name
        assert (paid.reference, paid.amount_minor) == (ORDER.reference, ORDER.amount_minor)
        assert (paid.currency, paid.mandate_ref) == (ORDER.currency, ORDER.mandate_ref)
        assert (paid.request_id, paid.external_ref) == (ORDER.request_id, ORDER.external_ref)
        assert (paid.status, paid.refunded_minor, paid.disputed) == (PaymentStatus(word), 0, False)
        declined = word == "declined"
        assert (paid.decline_code is not None) == declined
        assert paid.final == (declined and not account.gateway.contract().represents)
        assert paid.created_at is not None
        assert account.other.moved(ORDER) == ([ORDER.amount_minor] if word == "collected" else [])

    @pytest.mark.parametrize(
        ("ending", "kind"),
        [
            ("rate_limited", AnswerKind.NOT_PROCESSED),
            ("unauthorised", AnswerKind.UNAUTHORISED),
            ("forbidden", AnswerKind.UNAUTHORISED),
            ("invalid", AnswerKind.REFUSED_INVALID),
            ("not_found", AnswerKind.REFUSED_INVALID),
            ("key_in_use", AnswerKind.KEY_IN_PROGRESS),
            ("key_conflict", AnswerKind.KEY_CONFLICT),
        ],
    )
    def test_a_refusal_in_the_rail_s_own_words(
        self, account: Account, ending: str, kind: AnswerKind
    ) -> None:
        """Classified by the rail's table; sent once, nothing moved."""
        account.other.ending(ending)
        found, _ = account.charge()
        assert (found.kind, found.payment) == (kind, None)
        assert len(account.other.posts()) == 1
        assert account.other.moved(ORDER) == []

    @pytest.mark.parametrize("ending", AMBIGUOUS)
    def test_everything_else_is_ambiguous(self, account: Account, ending: str) -> None:
        """Whether money moved or not: no error leaves, nothing is sent again or elsewhere."""
        account.other.ending(ending)
        found, _ = account.charge(within=0.4 if ending == "no_answer" else 5.0)
        assert (found.kind, found.payment) == (AnswerKind.AMBIGUOUS, None)
        assert len(account.other.posts()) == 1
        assert account.other.moved(ORDER) == ([4900] if ending in MOVED else [])

    def test_after_its_deadline_nothing_is_sent(self, account: Account) -> None:
        """NOT_SENT, which counts as not processed; no byte of a POST reached the provider."""
        found, _ = account.charge(within=-1.0)
        assert found.kind is AnswerKind.NOT_SENT
        assert found.kind in NOT_PROCESSED_KINDS
        assert account.other.posts() == []

    def test_a_channel_goes_on_after_a_fault(self, account: Account) -> None:
        """Opened anew before the next permit, it charges again."""
        channel, body = account.gateway.open(), account.gateway.build_body(ORDER)
        account.other.ending("cut")
        assert channel.charge("k1", body, boottime() + 5).kind is AnswerKind.AMBIGUOUS
        channel.ensure_open()
        assert channel.charge("k2", body, boottime() + 5).kind is AnswerKind.PAYMENT
        channel.close()
        assert len(account.other.posts()) == 2

    def test_an_answer_keeps_no_raw_text(self, account: Account) -> None:
        """Words and fields are short codes of our own list; length and hash stand for the body."""
        for ending in ("invalid", "proxy_page", "server_error"):
            account.other.ending(ending)
            found, _ = account.charge(key=ending)
            assert len(found.word) <= 64
            assert not set(found.word) & set(" <>\"'{")
            assert all(len(v) <= 64 and " " not in v for v in found.fields.values())
            assert (found.body_length > 0) == bool(found.body_sha256)

    # ------------------------------------------------------------ keys

    def test_the_same_key_twice_moves_money_once(self, account: Account) -> None:
        """Replayed, or refused naming the payment; a rail that can do neither must not say so."""
        first, body = account.charge()
        second, same = account.charge()
        assert body == same
        contract = account.gateway.contract()
        assert first.payment is not None
        if contract.keys is Keys.REPLAY:
            assert (second.kind, second.replayed) == (AnswerKind.PAYMENT, True)
            assert second.payment == first.payment
        elif contract.keys is Keys.CONFLICT:
            assert second.kind is AnswerKind.KEY_CONFLICT
            assert second.named_payment_id == first.payment.payment_id
        if contract.keys is Keys.NONE:
            assert contract.resend_window(timedelta(0), timedelta(0)) == timedelta(0)
        else:
            assert account.other.moved(ORDER) == [4900]
        assert len(account.other.posts()) == 2

    def test_the_same_key_with_another_body_is_a_conflict(self, account: Account) -> None:
        """On every rail with keys; the second order moves nothing."""
        if account.gateway.contract().keys is Keys.NONE:
            pytest.skip("the contract declares no keys")
        other = replace(ORDER, amount_minor=4901)
        account.charge()
        assert account.charge(other)[0].kind is AnswerKind.KEY_CONFLICT
        assert account.other.moved(ORDER) == [4900]

    # ------------------------------------------------------------ the lookup

    def test_a_lookup_of_nothing_is_complete(self, account: Account) -> None:
        """No payments, and the provider's time."""
        found = account.lookup()
        assert (found.complete, found.payments, found.fault) == (True, (), None)
        assert found.provider_time is not None
        assert abs(found.provider_time - account.other.now()) < timedelta(seconds=5)

    def test_a_lookup_finds_every_page(self, account: Account) -> None:
        """All payments of the reference over all pages, ours and by hand, and no others."""
        first, _ = account.charge()
        assert first.payment is not None
        made = account.other.by_hand(ORDER, 5)
        account.other.by_hand(replace(ORDER, reference=reference(IDENTITY, UUID(int=2))))
        account.other.pages_of(2)
        account.other.pass_lag()
        found = account.lookup()
        assert (found.complete, found.foreign) == (True, ())
        assert {p.payment_id for p in found.payments} == {first.payment.payment_id, *made}
        by_id = {p.payment_id: p for p in found.payments}
        assert by_id[first.payment.payment_id] == first.payment
        assert {by_id[i].request_id for i in made} == {None}

    def test_a_payment_is_found_by_its_id(self, account: Account) -> None:
        """A recorded id is asked for, also where lists still lag behind."""
        (made,) = account.other.by_hand(ORDER)
        found = account.lookup(replace(QUESTION, payment_ids=(made,)))
        assert found.complete
        assert [p.payment_id for p in found.payments] == [made]

    def test_an_id_that_is_not_found_leaves_the_lookup_incomplete(self, account: Account) -> None:
        """What was recorded must be shown; what is found beside it is still told."""
        (made,) = account.other.by_hand(ORDER)
        found = account.lookup(replace(QUESTION, payment_ids=(made, "pay/../never?x=1")))
        assert not found.complete
        assert made in {p.payment_id for p in found.payments}

    def test_another_identity_s_payment_is_evidence(self, account: Account) -> None:
        """Where the mandate can be listed: our external_ref under a strange reference."""
        if not account.gateway.contract().list_by_mandate:
            pytest.skip("the contract lists no mandates")
        strange = replace(ORDER, reference=reference(STRANGER, UUID(int=1)))
        account.charge(strange, "k-strange")
        account.other.pass_lag()
        found = account.lookup()
        assert (found.complete, len(found.foreign), found.payments) == (True, 1, ())

    @pytest.mark.parametrize("fault", SPOILT)
    def test_a_spoilt_lookup_is_incomplete(self, account: Account, fault: str) -> None:
        """It says so instead of raising, asks nothing twice, and follows nothing."""
        account.other.by_hand(ORDER)
        account.other.pass_lag()
        gateway = account.again()
        gateway.contract()
        before = account.other.gets()
        account.other.spoil(fault)
        found = account.lookup(gateway=gateway)
        assert not found.complete
        assert SECRET not in (found.fault or SECRET)
        assert account.other.gets() - before == (2 if fault == "cursor_loop" else 1)
        assert account.other.posts() == []

    def test_an_unknown_word_is_unknown(self, account: Account) -> None:
        """A status that is not listed: UNKNOWN, and nothing final."""
        account.other.by_hand(ORDER)
        account.other.pass_lag()
        account.other.spoil("unknown_word")
        (found,) = account.lookup().payments
        assert (found.status, found.final) == (PaymentStatus.UNKNOWN, False)

    def test_a_lookup_without_a_date_has_no_time(self, account: Account) -> None:
        """No Date header is no agreement of clocks."""
        account.other.spoil("no_date")
        assert account.lookup().provider_time is None

    # ------------------------------------------------------------ the account

    def test_a_fingerprint_is_the_account_s(self, account: Account) -> None:
        """Stable, and another for another account or mode."""
        ours = account.gateway.describe()
        assert ours == account.again().describe()
        prints = {account.as_other(what).describe().fingerprint for what in ("account", "mode")}
        assert len(prints | {ours.fingerprint}) == 3

    def test_payments_of_a_period_come_in_pages(self, account: Account) -> None:
        """All of them once, and none from outside the period."""
        if not account.gateway.contract().lists_by_time:
            pytest.skip("the contract lists nothing by time")
        begin = account.other.now() - timedelta(minutes=1)
        made = account.other.by_hand(ORDER, 5)
        account.other.pages_of(2)
        account.other.pass_lag()
        end = account.other.now() + timedelta(minutes=1)
        pages = list(account.gateway.payments_between(begin, end))
        assert sorted(p.payment_id for page in pages for p in page) == sorted(made)
        assert len(pages) == 3
        empty = account.gateway.payments_between(begin - timedelta(days=1), begin)
        assert [p for page in empty for p in page] == []

    @pytest.mark.parametrize("fault", SPOILT)
    def test_a_spoilt_period_is_unreachable(self, account: Account, fault: str) -> None:
        """GatewayUnreachable, never a shorter list."""
        account.other.by_hand(ORDER)
        account.other.pass_lag()
        now, day = account.other.now(), timedelta(days=1)
        gateway = account.again()
        gateway.contract()
        account.other.spoil(fault)
        with pytest.raises(GatewayUnreachable):
            list(gateway.payments_between(now - day, now + day))

    def test_nobody_there_is_unreachable(self, account: Account) -> None:
        """Each question raises GatewayUnreachable; no secret stands in it or in the adapter."""
        now = account.other.now()
        for ask in (
            account.nowhere.open,
            account.nowhere.contract,
            account.nowhere.describe,
            lambda: list(account.nowhere.payments_between(now, now)),
        ):
            with pytest.raises(GatewayUnreachable) as caught:
                ask()
            assert SECRET not in str(caught.value) + repr(account.nowhere) + repr(account.gateway)

    def test_the_contract_is_declared(self, account: Account) -> None:
        """A lookup of some kind, and keys only with a time for which they are kept."""
        contract = account.gateway.contract()
        assert contract.lookup is not LookupKind.NONE
        assert contract.keys is not Keys.REPLAY or contract.key_retention > timedelta(0)
