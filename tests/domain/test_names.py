"""The names of what is asked for (protocol, Names): derived, read back, of the promised form."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from collections_engine.domain import request as requests
from collections_engine.domain.request import RequestState
from tests.support.oracle import request

IDENTITY = "abcdefgh234567ab"
ONE = UUID("00000000-0000-0000-0000-0000000000ff")


def test_a_reference_is_read_back() -> None:
    """Names: identity and instalment come back from the reference; nothing else does."""
    written = requests.reference(IDENTITY, ONE)
    assert written == f"{IDENTITY}-{ONE.hex}"
    assert requests.parse_reference(written) == (IDENTITY, ONE)
    for other in (written + "0", "x" + written, written.upper(), written.replace("-", "_"), ""):
        assert requests.parse_reference(other) is None


def test_names_are_derived_and_stay() -> None:
    """Names: these very ids and keys stand in the books of providers, for ever."""
    instalment = requests.instalment_id(IDENTITY, "A-1")
    assert instalment == UUID("20084ab2-9dd0-0a84-cd57-39a3f3b34bff")
    first, second = (requests.request_id(instalment, attempt) for attempt in (1, 2))
    assert first == UUID("ecd6b048-99eb-152a-7235-6db4822828ec")
    assert first != second
    assert requests.idempotency_key(first) == f"col-{first.hex}"


@pytest.mark.parametrize("identity", ["", "abc", IDENTITY.upper(), IDENTITY + "a", "1" * 16])
def test_an_identity_has_its_form(identity: str) -> None:
    """P18: sixteen base32 characters, or nothing is derived."""
    with pytest.raises(ValueError, match="identity"):
        requests.instalment_id(identity, "A-1")


def test_attempts_start_at_one() -> None:
    """Names: there is no attempt 0."""
    with pytest.raises(ValueError, match="attempt"):
        requests.request_id(ONE, 0)


def test_what_a_request_says_of_itself() -> None:
    """P7, P13: open, permitted, all sendings not processed; a new one is none but open."""
    new = request(1)
    assert (new.open, new.permitted, new.all_not_processed) == (True, False, False)
    assert (new.refusal_freed, new.rest_released, new.not_processed) == (False, False, 0)
    sent = replace(new, state=RequestState.SENDING, sendings=2, not_processed=1)
    assert (sent.open, sent.permitted, sent.all_not_processed) == (True, True, False)
    assert replace(sent, not_processed=2).all_not_processed
    assert replace(sent, not_processed=3).all_not_processed
    for state in RequestState:
        is_open = state in ("recorded", "sending", "accepted")
        assert replace(new, state=state).open is is_open
