"""A copy of the repository with an interpreter of its own, in which faults are planted and tests are run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults.planted import ROOT, FaultRefused

_PACKAGES = ("registry", "modules", "tasks", "gateway", "workers", "cli")


class TrialFailed(Exception):
    """Tests could not be run; the text says why."""


class TrialTree:
    """The copy, in `folder`. It has what git knows of the working tree, or would add; nothing is written outside of it.

    Its virtual environment has the packages of the running one as links, and the product's folders are those of the copy.
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
        if not self.python.exists():
            shutil.rmtree(self.root, ignore_errors=True)
        for path in [path for path in self.root.rglob("*") if path.is_file() and self._is_copied(path)]:
            if path.relative_to(self.root).as_posix() not in files:
                path.unlink()
        for name in files:
            source, target = ROOT / name, self.root / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                _drop_bytecode(target)
                shutil.copy2(source, target)
        if not self.python.exists():
            self._make_environment()
        self._check_imports()

    def _is_copied(self, path: Path) -> bool:
        inside = path.relative_to(self.root).parts
        return inside[0] not in {".venv", ".cache"} and "__pycache__" not in inside

    def _make_environment(self) -> None:
        """Link what is installed, but for what says where the product is; scripts name the copy's interpreter."""
        home, here = Path(sys.prefix), self._environment
        packages = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        for folder in (here / "bin", here / packages):
            folder.mkdir(parents=True)
        for entry in (home / packages).iterdir():
            if not (entry.suffix == ".pth" and entry.name.startswith("_toolfleet")):
                (here / packages / entry.name).symlink_to(entry)
        paths = [str(self.root / room) for room in _PACKAGES]
        (here / packages / "_toolfleet.pth").write_text("\n".join(paths) + "\n")
        shutil.copy(home / "pyvenv.cfg", here)
        for entry in (home / "bin").iterdir():
            target = here / "bin" / entry.name
            if entry.is_symlink():
                target.symlink_to(entry.readlink())
            elif (text := entry.read_bytes()).startswith(b"#!"):
                target.write_bytes(text.replace(bytes(home), bytes(here)))
                target.chmod(0o755)
            else:
                target.symlink_to(entry)
        (self.root / ".cache").symlink_to(ROOT / ".cache")  # programs of Node.js that tests run

    def _check_imports(self) -> None:
        code = "import json, toolfleet"
        code += "".join(f", toolfleet_{room}" for room in _PACKAGES)
        code += "; print(json.dumps([each.__file__ for each in (toolfleet, "
        code += ", ".join(f"toolfleet_{room}" for room in _PACKAGES) + ")]))"
        shown = subprocess.run(
            [self.python, "-c", code], cwd=self.root, env=self._variables, check=True, capture_output=True, text=True
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
        command += [word for name in left_out for word in ("--deselect", name)]
        with self._log.open("w") as log:
            ended = subprocess.run(
                [*command, *words], cwd=self.root, env=self._variables, stdout=log, stderr=log, check=False
            )
        kept = self._cache / "v" / "cache" / "lastfailed"
        failed = list[str](json.loads(kept.read_text())) if kept.exists() else []
        if not failed and ended.returncode not in {0, 5}:  # 5: there is none of these tiers
            raise TrialFailed(f"pytest ended with {ended.returncode}: see {self._log}")
        return failed

    @property
    def _variables(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TOOLFLEET_", "PYTHON", "PYTEST"))
        }
        path = f"{self._environment / 'bin'}:{os.environ['PATH']}"
        return {**kept, "VIRTUAL_ENV": str(self._environment), "PATH": path}


def _write(file: Path, text: str) -> None:
    _drop_bytecode(file)  # which knows a file by its size and second of change
    file.write_text(text)


def _drop_bytecode(file: Path) -> None:
    for kept in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        kept.unlink()
