"""An environment for each peer, with the Python of the project's own: made once, and again when its pins change."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import interpreters

HERE = Path(__file__).parent
ROOT = HERE.parent
ENVIRONMENTS = HERE / ".envs"
_PINS = "requirements.txt"
_STAMP = ".pins"
_INSTALL_SECONDS = 900


def python_of(name: str) -> Path:
    """The interpreter of an environment; that of the project for `toolfleet`."""
    return Path(sys.executable) if name == "toolfleet" else ENVIRONMENTS / name / "bin" / "python"


def is_ready(name: str) -> bool:
    """Whether an environment is built, of the pins that are there now."""
    if name == "toolfleet":
        return True
    stamp = ENVIRONMENTS / name / _STAMP
    return stamp.is_file() and stamp.read_text() == _fingerprint(_pins()[name])


def install(*names: str) -> None:
    """Build these, or all, where they are missing or have changed, and byte-compile the project's own code and the peers'."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    for name, pins in _pins().items():
        if names and name not in names:
            continue
        if is_ready(name):
            print(f"{name}: is there")
            continue
        print(f"{name}: building", flush=True)
        _build(ENVIRONMENTS / name, pins)
    compile_own_code()


def compile_own_code() -> None:
    """A worker that has to compile its code first starts later; packages were compiled when they were installed."""
    own = [str(ROOT / room) for room in ("registry", "modules", "tasks", "workers", "gateway", "cli")]
    ours = [*own, str(HERE / "peers"), str(HERE / "calling"), *map(str, HERE.glob("*.py"))]
    others = map(interpreters.environment_of, interpreters.OTHER_VERSIONS)
    ready = [python_of(name) for name in others if interpreters.is_there(name) and is_ready(name)]
    for python in (Path(sys.executable), *ready):
        _run([python, "-m", "compileall", "-q", *ours])


def _pins() -> dict[str, Path]:
    """Each folder with pinned requirements is an environment of that name; and so is each other interpreter that is here."""
    folders = [*(HERE / "peers").iterdir(), HERE / "module", HERE / "plot"]
    pinned = {folder.name: folder / _PINS for folder in sorted(folders) if (folder / _PINS).is_file()}
    others = map(interpreters.environment_of, interpreters.OTHER_VERSIONS)
    return pinned | {name: interpreters.LOCK for name in others if interpreters.is_there(name)}


def _build(folder: Path, pins: Path) -> None:
    if version := interpreters.version_of(folder.name):
        interpreters.build(folder, version, _run)
    else:
        _run([interpreters.UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
        python = folder / "bin" / "python"
        _run(
            [
                interpreters.UV,
                "pip",
                "install",
                "--quiet",
                "--compile-bytecode",
                "--python",
                python,
                "--requirement",
                pins,
            ]
        )
    (folder / _STAMP).write_text(_fingerprint(pins))


def _fingerprint(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)


if __name__ == "__main__":
    install()
