"""Settings: every fault at once, no secret in any message, the example file whole."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from collections_engine.domain.errors import SettingsError
from collections_engine.domain.workdays import Convention
from collections_engine.settings import Settings, load
from collections_engine.telemetry import passwords_in
from tests.support.command import ROOT

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EXAMPLE = ROOT / "collections.example.toml"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No collections.toml lies about."""
    monkeypatch.chdir(tmp_path)


def made(toml: str = "", **variables: str) -> Settings:
    """Settings from a file's text and variables without their prefix."""
    environment = {f"COLLECTIONS_{name}": value for name, value in variables.items()}
    if toml:
        path = Path("given.toml")
        path.write_text(toml, encoding="utf-8")
        environment["COLLECTIONS_CONFIG"] = str(path)
    return load(environment)


def faults(toml: str = "", **variables: str) -> tuple[str, ...]:
    """The faults that these settings have."""
    with pytest.raises(SettingsError) as caught:
        made(toml, **variables)
    assert caught.value.exit_code == 2
    return caught.value.faults


def fault(toml: str = "", **variables: str) -> str:
    """The one fault that these settings have."""
    (only,) = faults(toml, **variables)
    return only


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    """Without file and variables: the embedded server, UTC, soft declines three times in all."""
    found = load({})
    assert found.database_url is None
    assert (found.timezone, found.gateway_deadline_seconds, found.lease_seconds) == ("UTC", 30, 120)
    assert (found.concurrency, found.caps, found.provider_accounts) == (16, {}, {})
    assert found.retry_policy.max_attempts == 3
    assert found.calendar.due_convention is Convention.NONE


def test_the_example_shows_every_key_with_its_default() -> None:
    """It loads as it is, to the defaults; with its comments taken off it names every key."""
    text = EXAMPLE.read_text(encoding="utf-8")
    plain = made(text)
    assert plain.model_dump() == load({}).model_dump()
    uncommented = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    table = tomllib.loads(uncommented)
    secret = {"api_key", "webhook_secret"}
    assert set(table) == set(Settings.model_fields)
    account = table["provider_accounts"]["simulator"]
    fields = type(made(uncommented).provider_accounts["simulator"]).model_fields
    assert set(account) == set(fields) - secret


def test_the_environment_goes_before_the_file() -> None:
    """A variable overrides the key of its name; what only the file has stays."""
    found = made('timezone = "Asia/Tokyo"\nlease_seconds = 300', TIMEZONE="Europe/London")
    assert (found.timezone, found.lease_seconds) == ("Europe/London", 300)


def test_a_file_in_the_working_folder_is_read_and_a_named_one_must_exist() -> None:
    """The default file may be absent, a named one not."""
    Path("collections.toml").write_text("concurrency = 3")
    assert load({}).concurrency == 3
    assert "does not exist" in fault(CONFIG="elsewhere.toml")


def test_every_fault_is_reported_at_once() -> None:
    """Five faults, five lines, and nothing started."""
    found = faults(
        'timezone = "Mars/Olympus"\nleese_seconds = 5\n[provider_accounts.a]\nkind = "simulator"',
        CONCURRENCY="0",
        LOG_LEVEL="loud",
    )
    named = ("timezone", "leese_seconds", "provider_accounts.a.url", "CONCURRENCY", "LOG_LEVEL")
    assert len(found) == len(named)
    for name in named:
        assert any(name in text for text in found), name


def test_what_is_misspelt_is_named_with_the_nearest_known_name() -> None:
    """For keys of the file, of its tables, and for variables."""
    assert "lease_seconds?" in fault("leese_seconds = 5")
    assert "max_attempts?" in fault("[retry]\nmax_atempts = 5")
    assert "COLLECTIONS_TIMEZONE?" in fault(TIME_ZONE="UTC")
    assert made(TEST_ANYTHING="is ours") == load({})


def test_the_deadline_is_below_the_lease() -> None:
    """Else a second worker could take a row that is still being sent."""
    assert "must be below" in fault(GATEWAY_DEADLINE_SECONDS="120")
    assert made(GATEWAY_DEADLINE_SECONDS="119.5").lease_seconds == 120


@pytest.mark.parametrize("value", ["", " ", "\t"])
@pytest.mark.parametrize(
    "name", ["DATABASE_URL", "SIMULATOR_URL", "SIMULATOR_WEBHOOK_SECRET", "SIMULATOR_API_KEY"]
)
def test_an_empty_url_or_secret_is_a_fault_that_names_it(name: str, value: str) -> None:
    """Set but empty is never taken for unset (B51)."""
    url = {} if name == "SIMULATOR_URL" else {"SIMULATOR_URL": "http://127.0.0.1:1"}
    assert f"COLLECTIONS_{name} is set but empty" in fault(**{**url, name: value})


def test_the_simulator_account_needs_no_file() -> None:
    """Its URL defines it, with its secrets beside."""
    found = made(SIMULATOR_URL="http://127.0.0.1:8765/", SIMULATOR_API_KEY="k-1")
    account = found.provider_accounts["simulator"]
    assert (account.url, found.default_account) == ("http://127.0.0.1:8765", "simulator")
    assert account.api_key is not None
    assert account.api_key.get_secret_value() == "k-1"


def test_secrets_come_from_files_and_credentials(tmp_path: Path) -> None:
    """`*_FILE` names a file; a systemd credential is the last place that is looked at."""
    (tmp_path / "key").write_text("from-file\n")
    (tmp_path / "simulator_webhook_secret").write_text(f"{WHSEC}\n{WHSEC[:-4]}AAAA\n")
    (tmp_path / "database_url").write_text("postgresql://u:pw@h/d")
    found = load(
        {
            "COLLECTIONS_SIMULATOR_URL": "http://127.0.0.1:1",
            "COLLECTIONS_SIMULATOR_API_KEY_FILE": str(tmp_path / "key"),
            "CREDENTIALS_DIRECTORY": str(tmp_path),
        }
    )
    both = f"{WHSEC},{WHSEC[:-4]}AAAA"  # one to a line, while a secret is being changed
    keys = {key.removeprefix("whsec_") for key in both.split(",")}
    assert found.secret_texts() == {"from-file", both, *keys, "pw"}
    assert "cannot be read" in fault(DATABASE_URL_FILE="/nonexistent/file")
    assert "both set" in fault(DATABASE_URL="postgresql:///x", DATABASE_URL_FILE="/x")


@pytest.mark.parametrize("secret", ["whsec_", "not base64", "whsec_c2hvcnQ=", ","])
def test_a_webhook_secret_must_be_one(secret: str) -> None:
    """Empty, short or no base64: a fault at start, which does not repeat it (B51, B52)."""
    text = fault(SIMULATOR_URL="http://127.0.0.1:1", SIMULATOR_WEBHOOK_SECRET=secret)
    assert "COLLECTIONS_SIMULATOR_WEBHOOK_SECRET" in text
    assert secret in ("whsec_", ",") or secret not in text


def test_no_message_repeats_a_secret() -> None:
    """Neither a fault nor the settings' own text shows one (B52)."""
    account = '[provider_accounts.a]\nkind = "simulator"\nurl = "http://h"\n'
    texts = [
        *faults(account + 'api_key = "sk_live_XYZ123"'),
        *faults('database_url = "postgresql://u:S3cr3tPw!@h/d"'),
        *faults(DATABASE_URL="S3cr3tPw!"),
        *faults(SIMULATOR_URL="http://u:S3cr3tPw!@h"),
        *faults(account + "[provider_accounts.a.secret]\nx = 'S3cr3tPw!'"),
        repr(made(DATABASE_URL="postgresql://u:S3cr3tPw!@h/d")),
        repr(made(SIMULATOR_URL="http://h", SIMULATOR_API_KEY="sk_live_XYZ123")),
    ]
    assert not [text for text in texts if "S3cr3t" in text or "sk_live" in text]
    assert "must not be in the TOML" in texts[0]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:S3cr3tPw!@h/d",
        "postgresql://u@h/d?password=S3cr3tPw!",
        "host=h password='S3cr3tPw!' user=u",
        "host=h password = S3cr3tPw!",
    ],
)
def test_a_database_password_is_found_in_every_spelling(url: str) -> None:
    """What telemetry must mask is taken out of the connection string."""
    assert "S3cr3tPw!" in passwords_in(url)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("a = ", "is not valid TOML"),
        ("[provider_accounts.UPPER]\nkind = 'simulator'", "UPPER is none"),
        ("[provider_accounts.a]\nkind = 'bank'\nurl = 'http://h'", "provider_accounts.a.kind"),
        ("[provider_accounts.a]\nkind = 'simulator'\nurl = 'ftp://h'", "http(s)://host"),
        ("[calendar]\nholidays = ['2026-02-30']", "calendar.holidays"),
        ("[caps.nobody]\nGBP = '1.00'", "no such provider account"),
        ("[retry]\nmax_attempts = 0", "retry.max_attempts"),
        ("database_url = ''", "database_url is empty"),
    ],
)
def test_wrong_values_are_refused_by_name(toml: str, said: str) -> None:
    """Each names what is wrong and where."""
    assert said in fault(toml)


def test_caps_are_decimal_texts_in_minor_units() -> None:
    """A number in the TOML would be binary; only text is an amount."""
    account = '[provider_accounts.a]\nkind = "simulator"\nurl = "http://h"\n[caps.a]\n'
    assert made(account + 'GBP = "5000.50"\nJPY = "80"').caps == {"a GBP": 500050, "a JPY": 80}
    assert "is no text" in fault(account + "GBP = 5000.5")
    assert "caps.a.XXX" in fault(account + 'XXX = "1"')


def test_contract_overrides_calendar_and_retry_reach_the_domain() -> None:
    """What the file declares is what the rest of the program gets."""
    found = made(
        '[provider_accounts.a]\nkind = "simulator"\nurl = "http://h"\nlookup = "lagging"\n'
        "lookup_lag_seconds = 5\n[retry]\nsoft_codes = ['x']\nmax_attempts = 5\n"
        "[calendar]\nholidays = ['2026-12-25']\ndue_convention = 'following'\n"
    )
    expected: dict[str, Any] = {"lookup": "lagging", "lookup_lag_seconds": 5}
    assert found.provider_accounts["a"].contract == expected
    assert found.retry_policy.soft_codes == {"x"}
    assert found.calendar.holidays == {date(2026, 12, 25)}
    assert found.calendar.due_convention is Convention.FOLLOWING
