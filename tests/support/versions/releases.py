"""Builds earlier versions of the project out of its history, to run their agents and workers beside today's."""

import functools
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
VERSIONS = ROOT / "tests" / "wire" / "VERSIONS"
_BUILD_SECONDS = 300  # for an environment whose packages nobody has fetched yet


class NoHistory(Exception):
    """A copy of the project has no such commit: it was downloaded, or cloned without its history."""


@dataclass(frozen=True, slots=True)
class Version:
    """One line of `VERSIONS`: the wire version, the commit that spoke it first, its date, and the digest of its lock."""

    number: int
    commit: str
    date: str
    lock: str


@dataclass(frozen=True, slots=True)
class Release:
    """A version in a folder of its own, and the Python that has its packages."""

    folder: Path
    python: str

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to import this version, wherever another one is installed."""
        return {
            "PYTHONPATH": os.pathsep.join(
                str(self.folder / room) for room in ("registry", "modules", "tasks", "workers", "gateway", "cli")
            )
        }


def here() -> Release:
    """Today's code, as it is installed."""
    return Release(ROOT, sys.executable)


def versions() -> list[Version]:
    """All versions that are named in `VERSIONS`, the oldest first."""
    lines = [line.split() for line in VERSIONS.read_text().splitlines() if line and not line.startswith("#")]
    return [Version(int(number), commit, date, lock) for number, commit, date, lock in lines]


def build(version: Version, folder: Path) -> Release:
    """Unpack a version's commit into `folder`, with its packages. Raises `NoHistory` if it is not in this clone's history."""
    unpack(version, folder)
    return Release(folder, sys.executable if _digest(ROOT) == version.lock else _environment(folder))


def unpack(version: Version, folder: Path) -> None:
    """The same without its packages."""
    packed = subprocess.run(
        ["/usr/bin/env", "git", "-C", ROOT, "archive", version.commit],
        capture_output=True,
        check=False,
        timeout=_BUILD_SECONDS,
    )
    if packed.returncode:
        raise NoHistory(packed.stderr.decode(errors="replace").strip())
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    assert _digest(folder) == version.lock, "this is not the version that VERSIONS names"


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "requirements.lock").read_bytes()).hexdigest()


def _environment(folder: Path) -> str:
    """The Python of an environment with the packages that this version was locked to."""
    python = folder / ".venv" / "bin" / "python"
    run = functools.partial(subprocess.run, check=True, timeout=_BUILD_SECONDS)
    run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"])
    lock = folder / "requirements.lock"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    run([*uv, "--require-hashes", "--requirement", lock])
    return str(python)
