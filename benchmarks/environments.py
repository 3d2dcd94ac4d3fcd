"""An environment for each peer, with the Python of the project's own: made once, and again when its pins change."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
ENVIRONMENTS = HERE / ".envs"
_UV = Path(sys.executable).parent / "uv"
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
    _run([sys.executable, "-m", "compileall", "-q", *own, str(HERE / "peers"), *map(str, HERE.glob("*.py"))])


def _pins() -> dict[str, Path]:
    """Each folder with pinned requirements is an environment of that name."""
    folders = [*(HERE / "peers").iterdir(), HERE / "module", HERE / "plot"]
    return {folder.name: folder / _PINS for folder in sorted(folders) if (folder / _PINS).is_file()}


def _build(folder: Path, pins: Path) -> None:
    _run([_UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
    python = folder / "bin" / "python"
    _run([_UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, "--requirement", pins])
    (folder / _STAMP).write_text(_fingerprint(pins))


def _fingerprint(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)


if __name__ == "__main__":
    install()
