"""Import 100,000 and 1,000,000 lines, each in a process of its own; print time and peak memory.

    python tests/bench/import_memory.py --database-url URL [--lines 100000 1000000] [--dry-run]

URL is an administrator's: a fresh database is made for each size and dropped afterwards. The file
is made on the way in, so that only the import's own memory is measured. The goal is a ratio of at
most 1.1 between the peaks.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

GOAL = 1.1
_CHILD = "--one"


def lines(count: int, instalments_each: int) -> Iterator[bytes]:
    """Yield an import file: customers one after the other, a plan of monthly instalments each."""
    yield b"external_ref,customer_ref,mandate_ref,due_date,amount,currency,plan_ref,sequence\n"
    for number in range(count):
        customer, step = divmod(number, instalments_each)
        due = f"{2026 + step // 12 % 100}-{step % 12 + 1:02}-{customer % 28 + 1:02}"
        amount = f"{number % 90_000 + 100}.{number % 100:02}"
        yield (
            f"plan-{customer:07}-{step:03},c-{customer:07},m-{customer:07},{due},{amount},GBP,"
            f"plan-{customer:07},{step + 1}\n"
        ).encode()


class Made(RawIOBase):
    """A binary stream of lines that are made when they are read."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source, self._rest = source, b""

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill the buffer with what comes next."""
        view = cast("memoryview", buffer)
        self._rest = self._rest or next(self._source, b"")
        taken = self._rest[: len(view)]
        view[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)


def import_one(url: str, count: int, instalments_each: int, *, dry_run: bool) -> None:
    """Import into this database and print what it took, as JSON."""
    from collections_engine.store.db import connect
    from collections_engine.usecases.importing import ImportOptions, import_file

    began = time.monotonic()
    with connect(url, "bench") as connection:
        report = import_file(
            connection,
            BufferedReader(Made(lines(count, instalments_each))),
            ImportOptions(dry_run=dry_run),
            identity="abcdefghijklmnop",
            known_accounts=frozenset({"simulator"}),
            default_account="simulator",
        )
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.monotonic() - began
    print(json.dumps({"inserted": report.inserted, "seconds": seconds, "peak_kib": peak_kib}))


def measure(admin: str, count: int, instalments_each: int, *, dry_run: bool) -> int:
    """Import so many lines in a new process and a new database; return the peak in KiB."""
    from tests.support.database import create_database, database_name, drop_database, make_template

    template = make_template(admin)
    url = create_database(admin, template)
    try:
        command = [sys.executable, __file__, "--database-url", url, _CHILD, str(count)]
        command += ["--instalments", str(instalments_each), *(["--dry-run"] if dry_run else [])]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
    finally:
        drop_database(admin, database_name(url))
        drop_database(admin, template)
    found = json.loads(run.stdout)
    print(
        f"{count:>10} lines  {found['seconds']:8.1f} s  {count / found['seconds']:9.0f} lines/s"
        f"  peak {found['peak_kib'] / 1024:6.1f} MiB"
    )
    return int(found["peak_kib"])


def main() -> None:
    """Measure each size in turn; exit 1 when the largest peak misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--lines", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--instalments", type=int, default=60, help="instalments of each customer")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument(_CHILD, type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        import_one(options.database_url, options.one, options.instalments, dry_run=options.dry_run)
        return
    peaks = [
        measure(options.database_url, count, options.instalments, dry_run=options.dry_run)
        for count in options.lines
    ]
    ratio = peaks[-1] / peaks[0]
    print(f"peak of {options.lines[-1]} lines / peak of {options.lines[0]} lines: {ratio:.3f}")
    sys.exit(ratio > GOAL)


if __name__ == "__main__":
    main()
