"""Caps: a daily amount per account and currency, and charges per customer and day (P4, B57)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

HEAD = "external_ref,customer_ref,mandate_ref,due_date,amount,currency\n"
ROWS = [
    ("c9-1", "c9", "2026-05-01"),
    ("c9-2", "c9", "2026-05-08"),
    ("c9-3", "c9", "2026-05-15"),
    ("c10-1", "c10", "2026-05-16"),
]


def import_rows(command: Command, path: Path) -> None:
    """The rows of case B57, 50.00 GBP each."""
    lines = [f"{ref},{customer},MD-{customer},{due},50.00,GBP\n" for ref, customer, due in ROWS]
    path.write_text(HEAD + "".join(lines), encoding="utf-8")
    assert command("import", str(path)).code == 0


def paid(connect: Connect) -> list[str]:
    """The refs that are paid now."""
    sql = "SELECT external_ref FROM instalments WHERE status = 'paid' ORDER BY external_ref"
    return [row[0] for row in connect().execute(sql)]


def test_downtime_is_made_up_for_in_one_run(
    command: Command, rail: Rail, connect: Connect, tmp_path: Path
) -> None:
    """B57: without a limit each overdue instalment is captured once; what is not due stays."""
    import_rows(command, tmp_path / "s.csv")
    command("run", "--date", "2026-05-15")
    assert paid(connect) == ["c9-1", "c9-2", "c9-3"]
    assert [m["amount"] for m in rail.movements()] == [5000] * 3
    assert connect().execute("SELECT count(*) FROM runs WHERE kind = 'run'").fetchone() == (1,)


def test_a_customer_is_charged_once_a_day_oldest_first(
    command: Command, rail: Rail, connect: Connect, tmp_path: Path
) -> None:
    """B57: with a limit of one a day the three go out on three days, whoever asks how often."""
    command.variables["COLLECTIONS_CUSTOMER_CHARGES_PER_DAY"] = "1"
    import_rows(command, tmp_path / "s.csv")
    for day, expected in (
        ("2026-05-15", ["c9-1"]),
        ("2026-05-16", ["c10-1", "c9-1", "c9-2"]),
        ("2026-05-17", ["c10-1", "c9-1", "c9-2", "c9-3"]),
    ):
        for _ in range(2):
            assert command("run", "--date", day).code in (0, 3, 4)  # 4: refused by the limit
            assert paid(connect) == expected
    assert [m["amount"] for m in rail.movements()] == [5000] * 4


def test_two_doors_share_a_customers_limit(
    command: Command, rail: Rail, connect: Connect, tmp_path: Path
) -> None:
    """A run and a backfill at once: the database counts, so one charge a day stays one."""
    command.variables["COLLECTIONS_CUSTOMER_CHARGES_PER_DAY"] = "1"
    import_rows(command, tmp_path / "s.csv")
    doors = [
        command.start("run", "--json"),
        command.start("backfill", "--from", "2026-05-01", "--to", "2026-05-16", "--json"),
    ]
    for door in doors:
        door.communicate(timeout=60)
    charged = connect().execute(
        "SELECT customer_ref, count(*) FROM instalments WHERE status = 'paid' GROUP BY 1 ORDER BY 1"
    )
    assert charged.fetchall() == [("c10", 1), ("c9", 1)]
    assert len(rail.movements()) == 2


def test_a_daily_amount_is_not_exceeded(
    command: Command, rail: Rail, connect: Connect, tmp_path: Path
) -> None:
    """P4: 120.00 a day lets two of 50.00 pass; the third goes back to due, not lost."""
    config = tmp_path / "collections.toml"
    config.write_text('[caps.simulator]\nGBP = "120.00"\n')
    command.variables["COLLECTIONS_CONFIG"] = str(config)
    import_rows(command, tmp_path / "s.csv")
    done = command("run", "--date", "2026-05-16", "--json")
    assert (done.json["collected"], done.json["released"]) == (2, 2)
    assert len(paid(connect)) == 2
    assert command("run", "--date", "2026-05-17", "--json").json["collected"] == 2
    assert [m["amount"] for m in rail.movements()] == [5000] * 4
