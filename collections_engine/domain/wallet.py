"""Units, exact conversion rates and keys of customer wallets; no money moves here.

A unit is a currency or one that the settings declare (three capitals and its number of decimals).
A rate is an exact fraction of whole units, such as `7/6`: 1 unit of the one is 7/6 of the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from fractions import Fraction
from typing import Any, assert_never

from collections_engine.domain import money
from collections_engine.domain.money import EXPONENTS, MAX_MINOR, MoneyError

MAX_KEY = 200
RESERVED = ("cover:", "fund:", "instalment:", "payment:")
"""How the engine's own keys begin; a caller's key that did could stand in for one of them."""
_UNIT = re.compile(r"[A-Z]{3}")
_RATE = re.compile(r"([0-9]{1,12})(?:/([0-9]{1,12}))?")


class Rounding(StrEnum):
    """What becomes of a part of the smallest unit."""

    DOWN = "down"
    HALF_EVEN = "half-even"
    HALF_UP = "half-up"
    UP = "up"


class WalletError(ValueError):
    """Asked for with a bad key, unit or direction; the reason says which."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """One allowed direction; the way back is allowed only where it is declared too."""

    source: str
    target: str
    rate: Fraction
    """Whole units of the target for one whole unit of the source."""
    rounding: Rounding


@dataclass(frozen=True, slots=True)
class WalletPolicy:
    """What the settings say of wallets."""

    first: bool = False
    """Due instalments are paid from the wallet before a gateway is asked."""
    units: Mapping[str, int] = field(default_factory=dict)
    """Declared units and their decimals, beside the currencies."""
    conversions: tuple[Conversion, ...] = ()

    def decimals(self, unit: str) -> int:
        """Return a unit's decimals; raises MoneyError for one that is not known."""
        return self.units[unit] if unit in self.units else money.exponent(unit)

    def parse(self, text: str, unit: str) -> int:
        """Read a positive amount into minor units; raises MoneyError."""
        return money.parse_amount(text, unit, decimals=self.decimals(unit))

    def format(self, minor: int, unit: str) -> str:
        """Return minor units as a decimal text; of a unit no longer declared, minor units."""
        known = unit in self.units or unit in EXPONENTS
        return money.format_amount(minor, unit, decimals=self.decimals(unit) if known else 0)

    def converted(self, minor: int, source: str, target: str) -> int:
        """Return what a conversion gives, in minor units; raises WalletError."""
        rule = next((c for c in self.conversions if (c.source, c.target) == (source, target)), None)
        if rule is None:
            raise WalletError(f"the settings declare no conversion from {source} to {target}")
        shift = Fraction(10) ** (self.decimals(target) - self.decimals(source))
        made = rounded(minor * rule.rate * shift, rule.rounding)
        if not 0 < made <= MAX_MINOR:
            raise WalletError(f"that amount of {source} makes no amount of {target}")
        return made


def rounded(value: Fraction, rounding: Rounding) -> int:
    """Round a positive exact value to a whole number."""
    match rounding:
        case Rounding.DOWN:
            return value.__floor__()
        case Rounding.UP:
            return value.__ceil__()
        case Rounding.HALF_EVEN:
            return round(value)
        case Rounding.HALF_UP:
            return (value + Fraction(1, 2)).__floor__()
        case _:
            assert_never(rounding)


def checked_key(key: str) -> str:
    """Return a caller's key; raises WalletError for one that could not serve."""
    if not key.strip():
        raise WalletError("the key is missing; it is what keeps a repeat from moving money twice")
    if len(key) > MAX_KEY or not key.isprintable():
        raise WalletError(f"the key is a printable text of at most {MAX_KEY} characters")
    if key.startswith(RESERVED):
        raise WalletError(f"keys that begin with {', '.join(RESERVED)} are the engine's own")
    return key


def checked_day(day: date, today: date) -> date:
    """Return a service day that has come; raises WalletError for one in the future."""
    if day > today:
        raise WalletError(f"{day} lies in the future; no standing charge was taken")
    return day


def read_policy(table: object, faults: list[str]) -> WalletPolicy:
    """Read the settings' table `[wallet]`; every fault is added to `faults`."""
    if not isinstance(table, Mapping):
        faults.append("wallet is not a table")
        return WalletPolicy()
    unknown = sorted(set(table) - {"first", "units", "conversions"})
    faults += [f"the TOML key wallet.{name} is not known" for name in unknown]
    first = table.get("first", False)
    if not isinstance(first, bool):
        faults.append("wallet.first is true or false")
    units = _units(table.get("units", {}), faults)
    policy = WalletPolicy(first is True, units)
    given = table.get("conversions", [])
    if not isinstance(given, list):
        faults.append("wallet.conversions is a list of tables [[wallet.conversions]]")
        given = []
    found = [_conversion(n, each, policy, faults) for n, each in enumerate(given, start=1)]
    conversions = tuple(c for c in found if c is not None)
    if len({(c.source, c.target) for c in conversions}) < len(conversions):
        faults.append("wallet.conversions names the same direction twice")
    return WalletPolicy(first is True, units, conversions)


def _units(given: object, faults: list[str]) -> dict[str, int]:
    units: dict[str, int] = {}
    for name, decimals in given.items() if isinstance(given, Mapping) else [("", None)]:
        if not _UNIT.fullmatch(name) or type(decimals) is not int or not 0 <= decimals <= 6:
            faults.append(f"wallet.units.{name}: a unit is three capitals = its decimals, 0 to 6")
        elif name in EXPONENTS:
            faults.append(f"wallet.units.{name} is a currency and needs no declaration")
        else:
            units[name] = decimals
    return units


def _conversion(
    number: int, given: Any, policy: WalletPolicy, faults: list[str]
) -> Conversion | None:
    where = f"wallet.conversions, entry {number}"
    names = {"from", "to", "rate", "rounding"}
    if not isinstance(given, Mapping) or set(given) != names:
        faults.append(f"{where}: needs exactly {', '.join(sorted(names))}")
        return None
    try:
        source, target = str(given["from"]), str(given["to"])
        policy.decimals(source), policy.decimals(target)
        match = _RATE.fullmatch(given["rate"]) if isinstance(given["rate"], str) else None
        if match is None or int(match[2] or 1) == 0 or int(match[1]) == 0:
            faults.append(f'{where}: rate is an exact fraction as a text, such as "7/6" or "100"')
        elif source == target:
            faults.append(f"{where}: from and to are the same unit")
        else:
            rate = Fraction(int(match[1]), int(match[2] or 1))
            return Conversion(source, target, rate, Rounding(given["rounding"]))
    except MoneyError as error:
        faults.append(f"{where}: a unit {error}")
    except ValueError:
        faults.append(f"{where}: rounding is one of {', '.join(Rounding)}")
    return None
