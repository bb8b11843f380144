"""`make demo`: a real schedule collected over five days, faults and a `kill -9` included.

Everything runs as its users run it: an embedded PostgreSQL, the gateway simulator in a process of
its own, the `collections` command in others. At the end the gateway's own books are laid beside
the engine's ledger: who was charged, how often, and does every movement have its one entry.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.request import Request, urlopen

from collections_engine.domain.money import format_amount
from collections_engine.domain.schedule import Planned
from collections_engine.entry.loans import schedule, write_schedule
from collections_engine.settings import child_environment

DAYS = 5
WINDOW_START = date(1997, 6, 3)  # a dense week of the real calendar
LEASE_SECONDS = 8
DEADLINE_SECONDS = 2


def main() -> int:
    """Run the demonstration; 0 when the gateway's books prove it."""
    started = time.monotonic()
    today = datetime.now(UTC).date()  # the demonstration runs in UTC, the default zone
    first = today - timedelta(days=DAYS - 1)
    with _home() as home, _simulator() as url:
        demo = _Demo(home, url, first)
        try:
            proved = demo.play()
        finally:
            demo.collections("db", "stop", quiet=True)
    print(f"\n{time.monotonic() - started:.0f} seconds.")
    return 0 if proved else 1


@contextmanager
def _home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="collections-demo-"))
    home.chmod(0o711)  # as root the server runs under another account and passes through here
    try:
        yield home
    finally:
        rmtree(home, ignore_errors=True)


@contextmanager
def _simulator() -> Iterator[str]:
    command = [sys.executable, "-m", "collections_engine.simulator", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class _Demo:
    """The demonstration's stage: a database home, a gateway, a week."""

    def __init__(self, home: Path, url: str, first: date) -> None:
        self._home = home
        self._url = url
        self._days = [first + timedelta(days=n) for n in range(DAYS)]
        shift = first - WINDOW_START
        planned = schedule()
        self._shift_to = planned[0].due_date + shift
        self._rows = {day: [p for p in planned if p.due_date + shift == day] for day in self._days}
        self._env = child_environment(
            {
                "COLLECTIONS_HOME": str(home),
                "COLLECTIONS_SIMULATOR_URL": url,
                "COLLECTIONS_LEASE_SECONDS": str(LEASE_SECONDS),
                "COLLECTIONS_GATEWAY_DEADLINE_SECONDS": str(DEADLINE_SECONDS),
                "COLLECTIONS_ENVIRONMENT": "demo",
            }
        )

    def play(self) -> bool:
        """Play the week and prove it."""
        self._import()
        self._quiet_day()
        self._bad_day()
        self._crash()
        self._bank_answers()
        self._last_day()
        return self._prove()

    # --- the days ------------------------------------------------------------------------------

    def _import(self) -> None:
        path = self._home / "schedule.csv"
        with path.open("w", encoding="utf-8") as out:
            count = write_schedule(out, start=self._days[0], shift_to=self._shift_to)
        due = sum(len(rows) for rows in self._rows.values())
        _say(f"A real schedule: {count} instalments of real loans, {due} of them due this week.")
        report = self.json("import", str(path))
        print(f"  imported {report['inserted']} in one transaction")

    def _quiet_day(self) -> None:
        rows = self._rows[self._days[0]]
        _say(f"Day 1, {self._days[0]}: two soft declines, a hard one, one still pending.")
        self._faults(
            [
                _on(rows[0:2], "decline", code="insufficient_funds", times=2),
                _on(rows[2:3], "decline", code="account_closed"),
                _on(rows[3:4], "pending"),
            ]
        )
        self._run(0)

    def _bad_day(self) -> None:
        rows = self._rows[self._days[1]]
        _say(
            f"Day 2, {self._days[1]}: the gateway misbehaves. No answer although the money moved,"
            " a 502 page, a cut connection, a 429, a word nobody knows."
        )
        self._faults(
            [
                _on(rows[0:2], "timeout", moved="yes", times=2),
                _on(rows[2:3], "status", status=502, body="html", moved="yes", times=1),
                _on(rows[3:4], "cut", moved="no", times=1),
                _on(rows[4:5], "rate_limited", retry_after=1, times=1),
                _on(rows[5:6], "unknown_status", word="processing", moved="yes", times=1),
            ]
        )
        left = self._run(1)["review_rows"]
        print("  Nothing of that is guessed at. In flight, each with reason and next check:")
        for row in left:
            check = (
                f"next check {row['next_check'][11:19]} UTC" if row["next_check"] else "a person"
            )
            print(f"    {row['external_ref']}  {row['reason']}, {check}")
        self._recover()

    def _crash(self) -> None:
        rows = self._rows[self._days[2]][:3]
        _say(
            f"Day 3, {self._days[2]}: kill -9 while {len(rows)} charges are under way: money has"
            " moved, the answer has not come."
        )
        self._faults([_on(rows, "hold", phase="after", times=len(rows))])
        before = {row["external_ref"] for row in self.json("inflight", "list")["rows"]}
        command = [*self._program(), "run", "--date", str(self._days[2]), "--json"]
        worker = subprocess.Popen(
            command, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._post("/control/wait", {"for": "held", "count": len(rows), "timeout_seconds": 30})
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self._post("/control/release", {"action": "drop"})
        print(f"  killed process {worker.pid}")
        self._in_flight("The rows it held:", without=before)
        self._recover()
        _say(f"The same day is run again after the crash ({self._days[2]}).")
        self._run(2)

    def _bank_answers(self) -> None:
        _say(f"Day 4, {self._days[3]}: the bank settles what was pending; one is taken short.")
        for payment in self._get("/control/payments")["data"]:
            if payment["status"] == "pending":
                self._post(f"/control/payments/{payment['id']}", {"action": "settle"})
        rows = self._rows[self._days[3]]
        short = rows[0].amount_minor - 10_000
        self._faults(
            [_on(rows[0:1], "wrong_answer", field="amount", value=short, where="books", times=1)]
        )
        self._post("/control/clock", {"advance_seconds": 0})
        self._run(3)

    def _last_day(self) -> None:
        _say(f"Day 5, {self._days[4]}: an ordinary day; then the same command once more.")
        self._faults([])
        self._run(4)
        self._run(4)
        self._in_flight("What needs a person now:", review=True)

    # --- the proof -----------------------------------------------------------------------------

    def _prove(self) -> bool:
        _say("The proof, from the gateway's own books.")
        books = self._get("/control/books")
        taken = [m for m in books["movements"] if m["type"] == "collect"]
        per_request = Counter(m["request_id"] for m in taken)
        per_instalment = Counter(m["reference"] for m in taken)
        posts = [r for r in books["requests"] if r["path"] == "/v1/payments"]
        bodies: dict[str, set[str]] = {}
        for post in posts:
            bodies.setdefault(post["idempotency_key"], set()).add(post["sha256"])
        doctor = self.json("doctor")
        broken = [f for f in doctor.get("findings", []) if f.get("severity") == "money"]
        ledger = self.json("status").get("ledger", {})
        total = sum(m["amount"] for m in taken)
        currency = taken[0]["currency"]
        checks = [
            ("requests charged more than once", sum(n > 1 for n in per_request.values())),
            ("instalments charged more than once", sum(n > 1 for n in per_instalment.values())),
            ("keys sent with two different bodies", sum(len(b) > 1 for b in bodies.values())),
            ("broken money invariants (doctor)", len(broken)),
        ]
        print(f"  {len(posts)} charge requests reached the gateway, {len(taken)} took money,")
        print(f"  {format_amount(total, currency)} {currency} in all.")
        if ledger:
            print(f"  Our ledger holds {ledger}.")
        for text, count in checks:
            print(f"  {count:3d}  {text}")
        good = all(count == 0 for _, count in checks) and bool(taken)
        print("  Nobody was charged twice." if good else "  THE PROOF FAILED.")
        return good

    # --- helpers -------------------------------------------------------------------------------

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "collections_engine"]

    def collections(self, *words: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the command as a user does."""
        done = subprocess.run(
            [*self._program(), *words], env=self._env, capture_output=True, text=True, check=False
        )
        if not quiet and done.returncode not in (0, 3):
            sys.exit(f"collections {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
        return done

    def json(self, *words: str) -> dict[str, Any]:
        """Run the command and read its JSON document."""
        document = json.loads(self.collections(*words, "--json").stdout)
        return document if isinstance(document, dict) else {"rows": document}

    def _run(self, day: int) -> dict[str, Any]:
        s = self.json("run", "--date", str(self._days[day]))
        counts = {k: s[k] for k in ("collected", "submitted", "declined", "review", "resumed")}
        print("  " + ", ".join(f"{k} {n}" for k, n in counts.items()) + f"  (picked {s['picked']})")
        return s

    def _recover(self) -> None:
        s = self.json("recover", "--wait")
        print(
            f"  recover: {s['resumed']} resumed, {s['collected']} found collected or collected now"
        )

    def _in_flight(self, text: str, *, review: bool = False, without: Collection[str] = ()) -> None:
        listed = self.json("inflight", "list", *(["--review"] if review else []))["rows"]
        rows = [row for row in listed if row["external_ref"] not in without]
        print(f"  {text}")
        for row in rows:
            why = row["review_reason"] or "no answer yet"
            if row["next_check"] and not row["review_reason"]:
                why += f", next check {row['next_check'][11:19]} UTC"
            print(f"    {row['external_ref']}  {row['status']:10} {row['amount']:>9} {why}")
        if not rows:
            print("    none")

    def _faults(self, faults: Sequence[dict[str, Any]]) -> None:
        self._post("/control/faults", {"faults": list(faults)})

    def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        return _read(Request(self._url + path, body, headers))  # noqa: S310 - as above

    def _get(self, path: str) -> dict[str, Any]:
        return _read(Request(self._url + path))  # noqa: S310 - the simulator just started


def _read(request: Request) -> dict[str, Any]:
    with urlopen(request, timeout=60) as reply:  # noqa: S310 - the simulator just started
        document = json.load(reply)
    assert isinstance(document, dict)
    return document


def _on(rows: Sequence[Planned], kind: str, **more: Any) -> dict[str, Any]:
    """A fault for the charges of these instalments."""
    return {"kind": kind, "external_ref": [p.external_ref for p in rows], **more}


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
