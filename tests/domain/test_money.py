"""Amounts: read digit by digit, refused where they could mean anything else (B29, B30, B38)."""

from __future__ import annotations

from decimal import Decimal

import iso4217
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collections_engine.domain.money import (
    EXPONENTS,
    MAX_MINOR,
    MoneyError,
    display_amount,
    exponent,
    format_amount,
    parse_amount,
)


def refusal(text: str, currency: str = "GBP", *, decimal_comma: bool = False) -> MoneyError:
    with pytest.raises(MoneyError) as caught:
        parse_amount(text, currency, decimal_comma=decimal_comma)
    return caught.value


def test_the_table_is_the_standard_s() -> None:
    """Every active ISO 4217 code with a minor unit, with the decimals of the published list."""
    published = {
        code: int(str(entry["CcyMnrUnts"]))
        for code, entry in iso4217.raw_table.items()
        if str(entry["CcyMnrUnts"]).isdigit()
    }
    assert published == EXPONENTS


def test_no_penny_is_lost_from_a_penny_to_a_hundred_pounds() -> None:
    """B29: each of the 10,000 values gives its own minor units, also the notorious ones."""
    texts = [f"{minor // 100}.{minor % 100:02d}" for minor in range(1, 10_001)]
    assert [parse_amount(text, "GBP") for text in texts] == list(range(1, 10_001))
    notorious = {"19.99": 1999, "8.20": 820, "0.29": 29, "1.13": 113, "2.01": 201, "4.35": 435}
    assert {text: parse_amount(text, "GBP") for text in notorious} == notorious


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [
        ("80", "JPY", 80),
        ("35.200", "KWD", 35_200),
        ("18.605", "KWD", 18_605),
        ("12.30", "GBP", 1230),
        ("12.3", "GBP", 1230),
        ("12", "GBP", 1200),
        ("110.7", "GBP", 11_070),
        ("0012.30", "GBP", 1230),
        ("24155500.00", "GBP", 2_415_550_000),
        ("92233720368547758.07", "GBP", MAX_MINOR),
    ],
)
def test_each_currency_has_its_own_decimals(text: str, currency: str, minor: int) -> None:
    """B30, B38: no factor of 100 for all; amounts above 32 bits fit."""
    assert parse_amount(text, currency) == minor


@pytest.mark.parametrize("text", ["10.005", "1.234", "3.000", "12.300000000000001"])
def test_too_many_decimals_are_refused_even_zeros(text: str) -> None:
    """B29, B39: nothing is rounded, and a point that groups thousands is not read as one."""
    assert "decimals" in str(refusal(text))
    assert "decimals" in str(refusal("80.5", "JPY"))
    assert "decimals" in str(refusal("1.2345", "KWD"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "missing"),
        ("  ", "missing"),
        ("9,00", "comma"),
        ("1.234,56", "comma"),
        ("1,234.56", "comma"),
        ("1 234,56", "space"),
        ("1\u00a0234.56", "space"),
        (" 12.30", "space"),
        ("-5.00", "sign"),
        ("+5.00", "sign"),
        ("\u22125.00", "sign"),
        ("(5.00)", "sign"),
        ("1e3", "scientific"),
        ("1.23457E+15", "scientific"),
        ("nan", "not a number"),
        ("-Infinity", "not a number"),
        ("0.00", "zero"),
        ("0", "zero"),
        ("１２.30", "0 to 9"),
        ("١٢", "0 to 9"),
        ("²", "0 to 9"),
        ("abc", "plain decimal"),
        ("0x10", "plain decimal"),
        ("1_000", "plain decimal"),
        (".50", "plain decimal"),
        ("5.", "plain decimal"),
        ("£5", "0 to 9"),
        ("92233720368547758.08", "largest"),
        ("1" * 30, "largest"),
        ("9" * 100_000, "largest"),
    ],
)
def test_what_could_mean_two_amounts_is_refused(text: str, reason: str) -> None:
    """B38, B39: each has a reason a person understands, and the reason does not repeat the text."""
    error = refusal(text)
    assert reason in str(error)
    assert error.column == "amount"
    assert len(text.strip()) < 4 or text.strip() not in str(error)


@pytest.mark.parametrize(
    ("text", "minor"),
    [("9,00", 900), ("1.234,56", 123_456), ("12", 1200), ("1.234.567,8", 123456780)],
)
def test_a_decimal_comma_is_read_when_asked_for(text: str, minor: int) -> None:
    """B39: with the option, commas are decimal and points group thousands."""
    assert parse_amount(text, "EUR", decimal_comma=True) == minor


@pytest.mark.parametrize("text", ["1.234", "3.000", "110.7", "1,234.56", "1.23,45", "12.3456,00"])
def test_a_lonely_point_is_refused_beside_decimal_commas(text: str) -> None:
    """B39: no reading of a mixed file makes a thousand of one or one of a thousand."""
    refusal(text, "EUR", decimal_comma=True)


@pytest.mark.parametrize("code", ["XXZ", "gbp", "", "XXX", "XAU", "BGN", "GB", "ＧＢＰ"])
def test_an_unknown_currency_is_refused(code: str) -> None:
    """B30: retired codes, metals and misspelt codes are no currency to charge in."""
    assert refusal("1", code).column == "currency"
    with pytest.raises(MoneyError):
        exponent(code)


def test_amounts_are_shown_as_people_write_them() -> None:
    """B30: reports print ¥80 and KWD 35.200."""
    assert display_amount(80, "JPY") == "¥80"
    assert display_amount(35_200, "KWD") == "KWD 35.200"
    assert display_amount(-5, "GBP") == "-£0.05"
    assert format_amount(0, "GBP") == "0.00"
    assert format_amount(-123_456, "EUR") == "-1234.56"


@given(st.integers(1, MAX_MINOR), st.sampled_from(sorted(EXPONENTS)))
def test_what_is_written_is_read_back(minor: int, currency: str) -> None:
    """Writing and reading lose nothing, in any currency, with point or comma."""
    text = format_amount(minor, currency)
    assert parse_amount(text, currency) == minor
    assert parse_amount(text.replace(".", ","), currency, decimal_comma=True) == minor


@given(st.text(max_size=12) | st.from_regex(r"[-+0-9.,eE ]{1,8}", fullmatch=True), st.booleans())
def test_no_text_is_misread(text: str, comma: bool) -> None:
    """Whatever is accepted means exactly the minor units that came out."""
    try:
        minor = parse_amount(text, "GBP", decimal_comma=comma)
    except MoneyError:
        return
    plain = text.replace(".", "").replace(",", ".") if comma else text
    assert Decimal(plain) * 100 == minor > 0
