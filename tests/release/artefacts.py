"""Builds what is released: an sdist of each distribution, and each wheel out of its sdist, as an index's users would."""

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"toolfleet": ROOT, "toolfleet-sdk": ROOT / "modules"}
_SUFFIXES = {"sdist": ".tar.gz", "wheel": ".whl"}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The two artefacts of one distribution, and the wheel that is built from the tree without an sdist."""

    name: str
    sdist: Path
    wheel: Path
    wheel_of_tree: Path


def build(name: str, out: Path, scratch: Path) -> Distribution:
    """Build one distribution into `out`. Nothing is fetched: the backend is that of this environment."""
    sdist = _built(name, "sdist", FOLDERS[name], out)
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    (unpacked,) = scratch.iterdir()
    wheel = _built(name, "wheel", unpacked, out)
    return Distribution(name, sdist, wheel, _built(name, "wheel", FOLDERS[name], scratch / "of_tree"))


def contents(artefact: Path) -> dict[str, bytes]:
    """What is in an sdist or a wheel: path -> bytes. An sdist's paths are those in its own folder."""
    if artefact.suffix == ".whl":
        with zipfile.ZipFile(artefact) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(artefact) as sdist:
        files = {member.name: sdist.extractfile(member) for member in sdist if not member.isdir()}
        return {name.partition("/")[2]: file.read() if file else b"" for name, file in files.items()}


def listing(artefact: Path) -> str:
    """One line for the artefact, and one for each file in it, with its size in bytes."""
    files = contents(artefact)
    lines = [f"{len(data):>9,} {name}" for name, data in sorted(files.items())]
    return "\n".join([f"{artefact.name}: {len(files)} files, {artefact.stat().st_size:,} bytes", *lines, ""])


def _built(name: str, target: str, folder: Path, out: Path) -> Path:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    ended = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (made,) = out.glob(f"{name.replace('-', '_')}-*{_SUFFIXES[target]}")
    return made
