"""The units of systemd, as far as they can be judged without a machine that systemd has started."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.deployment.command_lines import parse
from support.documents import ROOT
from toolfleet_registry.config.gateway_settings import GATEWAY_LEAVE_SECONDS, GATEWAY_STOP_SECONDS
from toolfleet_registry.settings import Settings

UNITS = sorted((ROOT / "ops" / "systemd").glob("*.service"))
PROGRAM = "/opt/toolfleet/bin/toolfleet"
PAGE = (ROOT / "docs" / "operations" / "production.md").read_text()
MOST_EXPOSED = 4.0
"""Of 10, as `systemd-analyze security` counts: what it calls OK."""


def values(unit: Path, key: str) -> list[str]:
    """All values of a key, in their order."""
    return re.findall(rf"(?m)^{key}=(.*)$", unit.read_text())


def named(unit: Path) -> str:
    """Its text as one of its instances has it."""
    instance = "fast" if "worker" in unit.name else "owls"
    return unit.read_text().replace("%i", instance)


@pytest.fixture
def analyze() -> str:
    """The program that knows units."""
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("no systemd-analyze here")
    return found


def test_there_is_one_for_each_process() -> None:
    """Workers and hosts by their names, beat and gateway once."""
    assert [unit.name for unit in UNITS] == [
        "toolfleet-beat.service",
        "toolfleet-gateway.service",
        "toolfleet-host@.service",
        "toolfleet-worker@.service",
    ]
    assert [unit.name for unit in UNITS if unit.name.partition(".")[0] not in PAGE] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_each_runs_a_command_of_ours(unit: Path) -> None:
    """Its words are those of the command line, and it ends by SIGTERM."""
    (command,) = re.findall(r"(?m)^ExecStart=(.*)$", named(unit))
    found, _ = parse(command.split())

    assert command.startswith(PROGRAM)
    assert (
        found
        == {"beat": "beat", "gateway": "gateway", "host@": "host run", "worker@": "worker"}[
            unit.stem.removeprefix("toolfleet-")
        ]
    )
    assert values(unit, "KillSignal") == ["SIGTERM"]
    assert values(unit, "Restart") == ["always"]


def test_the_pages_commands_are_ours() -> None:
    """Each command of the fleet that the page has one type, by its own name or as `fleet`, is one; so is what a unit is edited to."""
    typed = re.findall(r"(?m)^(?:# |# sudo .*|ExecStart=)(?:fleet|/opt/toolfleet/bin/toolfleet) (.+)$", PAGE)
    found = [parse(["toolfleet", *shlex.split(words.replace("%i", "owls"))])[0] for words in typed]

    assert {"keys create", "modules key", "host run", "doctor", "status", "worker"} <= set(found)
    assert set(re.findall(r"toolfleet-[a-z]+@?(?=[a-z]*\b)", PAGE)) >= {unit.stem for unit in UNITS}


def test_none_is_killed_while_it_drains() -> None:
    """A worker has its drain and 20 s, a gateway the time of its requests."""
    settings = Settings(redis_url="redis://localhost")
    seconds = {unit.stem: float(values(unit, "TimeoutStopSec")[0]) for unit in UNITS}

    assert seconds["toolfleet-worker@"] >= settings.drain_seconds + 20
    assert seconds["toolfleet-gateway"] >= GATEWAY_STOP_SECONDS + GATEWAY_LEAVE_SECONDS + 10


def test_no_host_has_the_fleets_secrets() -> None:
    """It runs as another user, with variables of its own."""
    (host,) = [unit for unit in UNITS if "host" in unit.name]
    others = {user for unit in UNITS if unit != host for user in values(unit, "User")}

    assert others == {"toolfleet"}
    assert values(host, "User") == ["toolfleet-host"]
    assert values(host, "EnvironmentFile") == ["/etc/toolfleet/host-%i.env"]


def verified(analyze: str, folder: Path, units: Mapping[str, str]) -> str:
    """What systemd says of units, whose program is one that is there."""
    for name, text in units.items():
        (folder / name.replace("@", "@fast")).write_text(text.replace(PROGRAM, shutil.which("true") or "/bin/true"))
    command = [analyze, "verify", "--man=no", *map(str, folder.iterdir())]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


def test_systemd_takes_each(analyze: str, tmp_path: Path) -> None:
    assert verified(analyze, tmp_path, {unit.name: unit.read_text() for unit in UNITS}) == ""


PLANTED = [
    ("Restart=always", "Restat=always", "Restat"),
    ("TimeoutStopSec=160", "TimeoutStopSec=for ever", "for ever"),
    ("KillSignal=SIGTERM", "KillSignal=SIGTERN", "SIGTERN"),
    ("SystemCallFilter=@system-service", "SystemCallFilter=@owls", "@owls"),
]
"""Faults, and what systemd says of them."""


def test_a_fault_is_found(analyze: str, tmp_path: Path) -> None:
    """Each of these is, so that the check is one."""
    text = (ROOT / "ops" / "systemd" / "toolfleet-worker@.service").read_text()
    said = verified(
        analyze,
        tmp_path,
        {f"{number}.service": text.replace(right, wrong) for number, (right, wrong, _) in enumerate(PLANTED)},
    )

    assert [right for right, _, _ in PLANTED if right not in text] == []
    assert [fault for _, _, fault in PLANTED if fault not in said] == []


def test_each_can_do_little_else(analyze: str) -> None:
    """As systemd counts what a process could do to its machine."""
    command = [analyze, "security", "--offline=yes", "--no-pager", *map(str, UNITS)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    levels = re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)

    assert len(levels) == len(UNITS)
    assert max(map(float, levels)) <= MOST_EXPOSED
