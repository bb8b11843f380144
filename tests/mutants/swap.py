"""Put a mutant into modules that are loaded: the code of its functions is exchanged in place.

Every name that was imported from the module goes on to mean the same function object, so this is
the mutated module itself as long as only code inside functions differs. What a module or a class
makes at its import (tables, defaults, fields) has been made already: `changed` says None, and the
mutant needs processes that load it anew.
"""

from __future__ import annotations

import gc
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUNCTION = 0x1  # CO_OPTIMIZED: the bodies of modules and classes lack it

Pair = tuple[CodeType, CodeType]


def changed(before: str, after: str) -> list[Pair] | None:
    """The outermost functions whose code differs, old and new; None if anything else differs."""
    try:
        return list(_pairs(compile(before, "m", "exec"), compile(after, "m", "exec")))
    except (_Outside, SyntaxError):
        return None


class _Outside(Exception):
    """Something differs that is no function's body."""


def _pairs(old: CodeType, new: CodeType) -> Iterator[Pair]:
    if (old.co_code, old.co_names, len(old.co_consts)) != (
        new.co_code,
        new.co_names,
        len(new.co_consts),
    ):
        raise _Outside
    for mine, other in zip(old.co_consts, new.co_consts, strict=True):
        if not isinstance(mine, CodeType) or not isinstance(other, CodeType):
            if type(mine) is not type(other) or mine != other:
                raise _Outside
        elif mine.co_qualname != other.co_qualname:
            raise _Outside
        elif not mine.co_flags & _FUNCTION:
            yield from _pairs(mine, other)
        elif not _same(mine, other):
            if mine.co_name.startswith("<") or mine.co_freevars != other.co_freevars:
                raise _Outside
            yield mine, other


def _same(old: CodeType, new: CodeType) -> bool:
    parts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags")
    if any(getattr(old, p) != getattr(new, p) for p in parts):
        return False
    if len(old.co_consts) != len(new.co_consts) or old.co_exceptiontable != new.co_exceptiontable:
        return False
    return all(
        _same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else _equal(a, b)
        for a, b in zip(old.co_consts, new.co_consts, strict=True)
    )


def _equal(a: object, b: object) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


Functions = dict[tuple[str, str, int], list[FunctionType]]


def functions() -> Functions:
    """All functions that are held anywhere, by file, name and line."""
    held: Functions = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and "/collections_engine/" in one.__code__.co_filename:
            code = one.__code__
            file = "collections_engine/" + code.co_filename.rpartition("/collections_engine/")[2]
            held.setdefault((file, code.co_qualname, code.co_firstlineno), []).append(one)
    return held


def put_in(held: Functions, file: str, before: str, after: str) -> None:
    """Exchange the code of all functions of this file that differ, wherever they are held."""
    pairs = changed(before, after)
    assert pairs, "nothing to exchange"
    for old, new in pairs:
        for function in held[file, old.co_qualname, old.co_firstlineno]:
            function.__code__ = new


def forget_caches() -> None:
    """SQL files are read once per process; what was read before the change counts no more."""
    for name, module in list(sys.modules.items()):
        if name.startswith("collections_engine"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
