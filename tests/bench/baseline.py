"""The yardstick: pgbench, the same durable commits one statement at a time, no Python, no gateway.

Three commits and eight round trips for each instalment: a conditional claim; the intent; then two
updates and two inserts in a transaction.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.bench import database
from tests.bench.machine import Meter

CLIENTS = 16
_SCRIPT = r"""
\set i :i + 1
\set id (:i - 1) * :nc + :client_id + 1
UPDATE instalments SET status='processing', claimed_at=now(), claimed_by='w',
  attempt_count=attempt_count+1 WHERE id=:id AND status='due' AND outstanding>0
  AND NOT has_open_chargeback RETURNING outstanding AS amt, attempt_count AS no
\gset
INSERT INTO attempts(instalment_id, attempt_no, idempotency_key, amount, status)
  VALUES (:id, :no, 'inst-' || :id || '-' || :no, :amt, 'pending') RETURNING id AS aid
\gset
BEGIN;
UPDATE attempts SET status='succeeded', gateway_ref='ch_0123456789abcdef', finished_at=now()
  WHERE id=:aid AND status='pending';
INSERT INTO ledger(instalment_id, attempt_id, account, direction, amount)
  VALUES (:id, :aid, 'cash', 'D', :amt);
INSERT INTO ledger(instalment_id, attempt_id, account, direction, amount)
  VALUES (:id, :aid, 'receivable', 'C', :amt);
UPDATE instalments SET status='paid', outstanding=outstanding-:amt, paid_at=now()
  WHERE id=:id AND status='processing';
COMMIT;
"""


def measure(server: database.Server, work: Path, n: int) -> dict[str, object]:
    """Instalments a second, with the cores that it took."""
    each = n // CLIENTS
    url = server.create("bench_plain")
    database.seed_plain(url, each * CLIENTS)
    script = work / "base.sql"
    script.write_text(_SCRIPT.lstrip(), encoding="ascii")
    command = [str(database.programs() / "pgbench"), "-n", "-M", "prepared", "-f", str(script)]
    command += ["-c", str(CLIENTS), "-j", "2", "-t", str(each), "-D", "i=0"]
    command += ["-D", f"nc={CLIENTS}", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        meter = Meter({"postgres": server.pid, "pgbench": child.pid}).start()
        if hasattr(os, "waitid"):  # its end, while it can still be counted
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        else:
            child.wait()
        meter.stop()
        output = child.communicate()[0].decode(errors="replace")
    if child.returncode != 0 or "failed transactions: 0 " not in output:
        raise SystemExit(f"pgbench failed:\n{output[-2000:]}")
    database.check_plain(url, each * CLIENTS)
    server.drop("bench_plain")
    line = next(x for x in output.splitlines() if x.startswith("tps"))
    return {"rate": float(line.split()[2]), "cores": meter.cores, "others": meter.foreign}
