"""Money as integer minor units and an ISO 4217 code; text in, text out, no binary fractions (P19).

A file's amount is read digit by digit. Whatever could mean two amounts is refused with a reason,
never rounded, cut or guessed: a wrong amount that is accepted is a wrong charge.
"""

from __future__ import annotations

import re

MAX_MINOR = 2**63 - 1
"""The largest amount that the database holds (bigint)."""

# ISO 4217 list one as published on 2026-01-01: code by number of decimals. Codes without a minor
# unit (gold, testing, "no currency" …) are absent: nothing can be charged in them.
_CODES_BY_EXPONENT = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: """
        AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD
        CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP
        GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK
        LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO
        NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS
        SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST
        XAD XCD XCG YER ZAR ZMW ZWG""",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
EXPONENTS: dict[str, int] = {
    code: digits for digits, codes in _CODES_BY_EXPONENT.items() for code in codes.split()
}
"""Decimals of each active currency."""

_SYMBOLS = {"EUR": "€", "GBP": "£", "INR": "₹", "JPY": "¥", "USD": "$"}

_POINT = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
_COMMA = re.compile(r"([0-9]+|[0-9]{1,3}(?:\.[0-9]{3})+(?=,))(?:,([0-9]+))?")
_SCIENTIFIC = re.compile(r"[0-9.,]+[eE][+-]?[0-9]+")
_SIGNED = re.compile(r"[-+−(]")


class MoneyError(ValueError):
    """A text is not an amount, or a code not a currency; `column` says which of the two.

    The message never repeats the text: a shifted column may hold a card number.
    """

    def __init__(self, reason: str, column: str = "amount") -> None:
        super().__init__(reason)
        self.column = column


def exponent(currency: str) -> int:
    """Return how many decimals a currency has; raises MoneyError for an unknown code."""
    if (digits := EXPONENTS.get(currency)) is not None:
        return digits
    if currency.upper() in EXPONENTS:
        raise MoneyError("is not written in capitals", "currency")
    raise MoneyError("is not an active ISO 4217 currency with a minor unit", "currency")


def parse_amount(
    text: str, currency: str, *, decimal_comma: bool = False, decimals: int | None = None
) -> int:
    """Read a positive amount and return it in minor units; raises MoneyError with the reason.

    `decimals` are those of a unit that is no currency.

    With a decimal comma, dots may only group thousands of an amount that has its comma: `1.234`
    alone stays refused, because another file's author means a little more than one by it.
    """
    decimals = exponent(currency) if decimals is None else decimals
    match = (_COMMA if decimal_comma else _POINT).fullmatch(text)
    if match is None:
        raise MoneyError(_why_not_amount(text, decimal_comma=decimal_comma))
    whole, fraction = match[1].replace(".", "").lstrip("0"), match[2] or ""
    if len(fraction) > decimals:
        raise MoneyError(
            f"has {len(fraction)} decimals; {currency} has {decimals}, and nothing is rounded"
        )
    if len(whole) > len(str(MAX_MINOR)):  # before int(): it refuses very long texts its own way
        raise MoneyError("is larger than the largest amount that can be stored")
    minor = int(whole + fraction.ljust(decimals, "0") or "0")
    if minor > MAX_MINOR:
        raise MoneyError("is larger than the largest amount that can be stored")
    if minor == 0:
        raise MoneyError("is zero; only a positive amount can be collected")
    return minor


def _why_not_amount(text: str, *, decimal_comma: bool) -> str:
    """Return why a text that has not the form of an amount was refused."""
    if not text or text.isspace():
        return "is missing"
    if text.lstrip("+-").lower() in {"nan", "inf", "infinity"}:
        return "is not a number"
    if any(c.isspace() for c in text):
        return "has a space in it"
    if _SIGNED.match(text):
        return "has a sign; only a positive amount without a sign is accepted"
    if _SCIENTIFIC.fullmatch(text):
        return "is in scientific notation, which a spreadsheet makes of a number it has shortened"
    if not text.isascii() and any(c.isdigit() for c in text):
        return "has characters other than the digits 0 to 9"
    if decimal_comma and "." in text:
        return "has a point that does not group thousands before a decimal comma"
    if not decimal_comma and "," in text:
        return "has a comma; amounts are written with a decimal point and no thousands separator"
    return "is not a plain decimal number"


def format_amount(minor: int, currency: str, *, decimals: int | None = None) -> str:
    """Return minor units as a plain decimal text (`12.30`); raises MoneyError for the currency."""
    decimals = exponent(currency) if decimals is None else decimals
    sign, digits = "-" if minor < 0 else "", str(abs(minor)).rjust(decimals + 1, "0")
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}" if decimals else sign + digits


def display_amount(minor: int, currency: str) -> str:
    """Return minor units as people read them: `¥80`, `£12.30`, `KWD 35.200`, `-£1.00`."""
    plain = format_amount(abs(minor), currency)
    symbol = _SYMBOLS.get(currency, f"{currency} ")
    return f"{'-' if minor < 0 else ''}{symbol}{plain}"
