"""The same jobs as cron's, on a schedule of our own, for hosts without cron.

Each job is the command that cron would start, in a process of its own: what a job leaks or breaks
ends with it, a job that hangs holds up nobody, and there is no second way to do anything. Two
daemons on two hosts share the work safely, because two runs of cron would (P1): the second run of a
day steps aside, and what the first left behind is taken up.

A start that was missed is made up for once: while the daemon lives, because late starts are
coalesced, and across its restarts by the times that it wrote down under `home`. What was stopped or
met a dependency out of reach counts as missed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from collections_engine.domain.errors import SettingsError

STATE = "daemon.json"
UNREACHABLE = 75
AGAIN = timedelta(minutes=5)
"""After how long a daily job is tried again whose dependency was out of reach."""
DONE = (0, 2, 3, 4)
"""Exit codes after which a start counts: it did its work, or starting it again would not help."""
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
FEW_A_DAY = timedelta(hours=6)
"""Jobs that come as rarely as this are made up for after a restart; the others come soon anyway."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command and when it is started."""

    name: str
    trigger: CronTrigger
    arguments: tuple[str, ...]

    def rare(self, now: datetime) -> bool:
        """Whether a missed start matters: the next one is hours away."""
        first = self.trigger.get_next_fire_time(None, now)
        second = first and self.trigger.get_next_fire_time(first, first + timedelta(seconds=1))
        return first is None or second is None or second - first >= FEW_A_DAY

    def missed(self, last: datetime, now: datetime) -> bool:
        """Whether a start lay between the last one and now."""
        due = self.trigger.get_next_fire_time(last, last + timedelta(seconds=1))
        return due is not None and due <= now


def trigger(line: str, zone: str) -> CronTrigger:
    """Read cron's five fields; raises ValueError. Sunday is 0 or 7, as cron has it."""
    minute, hour, day, month, weekday = line.split()
    if "*" not in (day[0], weekday[0]):
        raise ValueError("a day of the month and a weekday are two schedules; cron takes either")
    return CronTrigger(
        minute=minute,
        hour=hour,
        day=day,
        month=month,
        day_of_week=_weekdays(weekday),
        timezone=ZoneInfo(zone),
    )


def _weekdays(field: str) -> str:
    """Name the weekdays: the scheduler's own numbers begin on another day than cron's."""
    found = list[str]()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if dash and not last:
            raise ValueError(f"{part!r} is no span of weekdays")
        if span == "*" and not step:
            return "*"
        begin = 0 if span == "*" else _weekday(first)
        end = 6 if span == "*" else _weekday(last) if last else 6 if step else begin
        end += 7 if end < begin else 0
        if step and not (step.isdigit() and int(step)):
            raise ValueError(f"{part!r} is no step of weekdays")
        found += [WEEKDAYS[n % 7] for n in range(begin, end + 1, int(step or 1))]
    return ",".join(dict.fromkeys(found))


def _weekday(text: str) -> int:
    if text in WEEKDAYS:
        return WEEKDAYS.index(text)
    if re.fullmatch("[0-7]", text):
        return int(text)
    raise ValueError(f"{text!r} is no weekday")


def jobs(schedule: Mapping[str, Any], zone: str) -> list[Job]:
    """Return the jobs of a schedule; raises SettingsError with every fault."""
    commands: dict[str, tuple[str, ...]] = {
        "fund": ("wallet", "fund"),
        "doctor": ("doctor",),
        "run": ("run",),
        "recover": ("recover",),
        "drain": ("webhooks", "drain"),
        "report": ("report", "day", "yesterday", "--html", str(schedule["report_file"])),
        "statement": ("statement", "compare", "--from", "yesterday", "--to", "yesterday"),
        "metrics": ("metrics", "--textfile", str(schedule["metrics_file"])),
    }
    faults, found = list[str](), list[Job]()
    for name, arguments in commands.items():
        line = str(schedule[name]).strip()
        if not line:
            continue
        if "" in arguments:
            faults.append(f"daemon.{name} needs daemon.{name}_file")
        try:
            when = trigger(line, zone)
        except ValueError as error:
            faults.append(f"daemon.{name}: {line!r} is no schedule ({error})")
        else:
            found.append(Job(name, when, (*arguments, "--json")))
    if not found and not faults:
        faults.append("every schedule under [daemon] is empty, so there is nothing to do")
    if faults:
        raise SettingsError(faults)
    return found


class Manager:
    """Tells systemd, where it started us, that we are ready, alive, or on our way out."""

    def __init__(self, address: str | None) -> None:
        self._address = f"\0{address[1:]}" if address and address[0] == "@" else address

    def tell(self, state: str) -> None:
        """Send one word; a manager that does not listen changes nothing."""
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            try:
                out.sendto(state.encode(), self._address)
            except OSError:
                return


class Daemon:
    """The schedule at work."""

    def __init__(
        self,
        todo: Sequence[Job],
        home: Path,
        log: Callable[..., Any],
        manager: Manager,
        command: Sequence[str] = (sys.executable, "-m", "collections_engine"),
    ) -> None:
        self._todo, self._home, self._log, self._manager = todo, home, log, manager
        self._command = list(command)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._alive: dict[str, subprocess.Popen[bytes]] = {}
        self._last = self._read()
        pool = ThreadPoolExecutor(len(todo) + 2)  # a job that hangs holds up no other
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        self._scheduler = BackgroundScheduler(executors={"default": pool}, job_defaults=defaults)

    def serve(self, watchdog_seconds: float | None) -> None:
        """Work until SIGTERM or SIGINT; jobs under way are told to stop and waited for."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: self._stop.set())
        for job in self._todo:
            self._scheduler.add_job(self._start, job.trigger, args=[job], id=job.name)
        if watchdog_seconds:  # from the schedule itself, so that a dead one is seen
            self._scheduler.add_job(
                self._manager.tell,
                "interval",
                seconds=watchdog_seconds / 3,
                args=["WATCHDOG=1"],
                id="watchdog",
            )
        self._make_up()
        self._scheduler.start()
        self._log("daemon.started", jobs={job.name: str(job.trigger) for job in self._todo})
        self._manager.tell("READY=1")
        self._stop.wait()
        self._end()

    def _make_up(self) -> None:
        """Start once, now, what was missed while no daemon was alive."""
        now = datetime.now().astimezone()
        for job in self._todo:
            last = self._last.get(job.name)
            if last is not None and job.rare(now) and job.missed(last, now):
                self._log("daemon.missed", job=job.name, last=last.isoformat())
                self._scheduler.add_job(self._start, args=[job], id=f"{job.name} missed")
            elif last is None:
                self._write(job.name, now)  # from here on it is known what was missed

    def _start(self, job: Job) -> None:
        """Run one job to its end; whatever becomes of it, the schedule goes on."""
        with self._lock:
            if self._stop.is_set() or job.name in self._alive:
                return
            began, at = time.monotonic(), datetime.now().astimezone()
            child = subprocess.Popen([*self._command, *job.arguments], stdin=subprocess.DEVNULL)
            self._alive[job.name] = child
        try:
            code = child.wait()
        finally:
            with self._lock:
                del self._alive[job.name]
        seconds = round(time.monotonic() - began, 3)
        self._log("daemon.job", job=job.name, exit_code=code, seconds=seconds)
        if code in DONE:
            self._write(job.name, at)  # else it is made up for after a restart
        now = datetime.now().astimezone()
        if code == UNREACHABLE and job.rare(now) and not self._stop.is_set():
            self._scheduler.add_job(
                self._start,
                "date",
                run_date=now + AGAIN,
                args=[job],
                id=f"{job.name} again",
                replace_existing=True,
            )

    def _end(self) -> None:
        self._manager.tell("STOPPING=1")
        with self._lock:
            children = dict(self._alive)
            for child in children.values():
                child.terminate()
        self._log("daemon.stopping", jobs=sorted(children))
        for child in children.values():
            child.wait()
        self._scheduler.shutdown(wait=True)
        self._log("daemon.stopped")

    def _read(self) -> dict[str, datetime]:
        try:
            found = json.loads((self._home / STATE).read_text(encoding="utf-8"))
            return {name: datetime.fromisoformat(at) for name, at in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}  # nothing is known to be missed; the next starts are on time

    def _write(self, name: str, at: datetime) -> None:
        self._last[name] = at
        text = json.dumps({n: t.isoformat() for n, t in self._last.items()}, indent=1)
        made = self._home / f".{STATE}.{os.getpid()}"
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            made.write_text(text, encoding="utf-8")
            made.replace(self._home / STATE)
        except OSError as error:
            self._log("daemon.state_not_written", error=type(error).__name__)
