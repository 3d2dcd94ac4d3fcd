"""A copy of the repository with an interpreter of its own, in which faults are planted and tests are run."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults.planted import ROOT, FaultRefused

_PACKAGES = ("registry", "modules", "tasks", "gateway", "workers", "cli")


class TrialFailed(Exception):
    """Tests could not be run; the text says why."""


class TrialTree:
    """The copy, in `folder`. It has what git knows of the working tree, or would add; nothing is written outside of it.

    Its virtual environment has the packages of the repository's as hard links, and imports the copy's folders.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._environment = self.root / ".venv"
        self._cache = folder / "pytest"
        self._log = folder / "pytest.log"
        self.python = self._environment / "bin" / "python"

    def refresh(self) -> None:
        """Bring the copy to the state of the working tree. Raises `TrialFailed` if its product would not be what is imported."""
        listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
        files = {name for name in names if name and (ROOT / name).is_file()}
        for path in [path for path in self.root.rglob("*") if path.is_file() and self._is_copied(path)]:
            if path.relative_to(self.root).as_posix() not in files:
                path.unlink()
        changed = [name for name in files if _differ(ROOT / name, self.root / name)]
        for name in changed:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _drop_bytecode(target)
            shutil.copy2(ROOT / name, target)
        if not self.python.exists() or "requirements.lock" in changed:
            self._make_environment()
        self._check_imports()

    def _is_copied(self, path: Path) -> bool:
        inside = path.relative_to(self.root).parts
        return inside[0] not in {".venv", ".cache"} and "__pycache__" not in inside

    def _make_environment(self) -> None:
        """Link all that is installed, but for files that say where it is."""
        made = self.root / ".venv.new"
        for left in (made, self._environment):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(ROOT / ".venv", made, symlinks=True, copy_function=os.link)
        for file in [*(made / "bin").iterdir(), *made.glob("lib/*/site-packages/_toolfleet*.pth")]:
            if not file.is_symlink() and (text := file.read_bytes()) and bytes(ROOT) in text:
                mode = file.stat().st_mode
                file.unlink()  # it is a link to the one that must stay
                file.write_bytes(text.replace(bytes(ROOT), bytes(self.root)))
                file.chmod(mode)
        made.rename(self._environment)
        cache = self.root / ".cache"  # programs of Node.js that tests run
        if not cache.is_symlink():
            cache.symlink_to(ROOT / ".cache")

    def _check_imports(self) -> None:
        code = "import json, toolfleet"
        code += "".join(f", toolfleet_{room}" for room in _PACKAGES)
        code += "; print(json.dumps([each.__file__ for each in (toolfleet, "
        code += ", ".join(f"toolfleet_{room}" for room in _PACKAGES) + ")]))"
        shown = subprocess.run(
            [self.python, "-c", code], cwd=self.root, env=self.variables, check=True, capture_output=True, text=True
        ).stdout
        if strays := [file for file in json.loads(shown) if not Path(file).is_relative_to(self.root)]:
            raise TrialFailed(f"The copy does not import itself, but {strays}.")

    @contextmanager
    def changed(self, path: Path, old: str, new: str) -> Iterator[None]:
        """Have `new` in the place of `old` in a file of the copy, for as long as this is entered."""
        file = self.root / path
        whole = file.read_text()
        if whole.count(old) != 1:
            raise FaultRefused(f"{path} has the old text {whole.count(old)} times.")
        try:
            _write(file, whole.replace(old, new))
            yield
        finally:
            _write(file, whole)

    def run(self, words: Sequence[str], *, left_out: Sequence[str] = (), processes: int = 0) -> list[str]:
        """Run pytest until the first failure. Returns the tests that failed, or files that could not be imported.

        Raises `TrialFailed` if pytest ended in another way than by tests that passed or failed.
        """
        shutil.rmtree(self._cache, ignore_errors=True)
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "usual or fleet",
            "-o",
            f"cache_dir={self._cache}",
        ]
        if processes:
            command += ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]
        command += [f"--deselect={name}" for name in left_out]
        with self._log.open("w") as log:
            ended = subprocess.run(
                [*command, *words], cwd=self.root, env=self.variables, stdout=log, stderr=log, check=False
            )
        kept = self._cache / "v" / "cache" / "lastfailed"
        failed = list[str](json.loads(kept.read_text())) if kept.exists() else []
        if not failed and ended.returncode not in {0, 5}:  # 5: there is none of these tiers
            raise TrialFailed(f"pytest ended with {ended.returncode}: see {self._log}")
        return failed

    @property
    def variables(self) -> dict[str, str]:
        """The environment of what runs in the copy."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TOOLFLEET_", "PYTHON", "PYTEST"))
        }
        path = f"{self._environment / 'bin'}:{os.environ['PATH']}"
        return {**kept, "VIRTUAL_ENV": str(self._environment), "PATH": path}


def _differ(one: Path, other: Path) -> bool:
    return not other.exists() or one.read_bytes() != other.read_bytes()


def _write(file: Path, text: str) -> None:
    _drop_bytecode(file)  # which knows a file by its size and second of change
    file.write_text(text)


def _drop_bytecode(file: Path) -> None:
    for kept in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        kept.unlink()
