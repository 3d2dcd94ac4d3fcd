"""Clean environments: what somebody has who has installed one thing, and nothing of this tree."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from release.artefacts import ROOT, Distribution
from support.waiting import wait_until_sync
from toolfleet_modules.hosts.child_process import spawn, stop

_STOP_SECONDS = 20
_NO_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python with what was installed into it. Programs run in `folder`, where no file of the project is."""

    path: Path
    folder: Path

    def run(self, program: str, *words: str, env: Mapping[str, str] = _NO_MORE) -> str:
        """Run a program of this environment to its end; returns what it has printed."""
        ended = subprocess.run(
            [self.path / "bin" / program, *words],
            cwd=self.folder,
            env={**_clean_variables(), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{program} {' '.join(words)}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def cpu_seconds(self, code: str) -> float:
        """Run a program of its own, and return what the kernel says that it has used: user and system together."""
        process = subprocess.Popen([self.path / "bin" / "python", "-c", code], cwd=self.folder, env=_clean_variables())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_utime + usage.ru_stime

    @contextmanager
    def running(self, program: str, *words: str, ready: str, env: Mapping[str, str] = _NO_MORE) -> Generator[None]:
        """A program of this environment, from when it has said `ready`; its log is shown if that did not go well."""
        log = self.folder / f"{program}.log"
        with log.open("wb") as output:
            process = spawn(
                [self.path / "bin" / program, *words],
                cwd=self.folder,
                env={"PYTHONPATH": "", "PYTHONUNBUFFERED": "1", **env},
                output=output,
            )
        try:
            wait_until_sync(lambda: ready in log.read_text() or process.poll() is not None, f"{program} says {ready!r}")
            assert process.poll() is None
            yield
        except BaseException:
            print(log.read_text())  # noqa: T201 - pytest shows it beside the failure
            raise
        finally:
            stop(process, patience_seconds=_STOP_SECONDS)

    def packages(self) -> set[str]:
        """The names of all that is installed."""
        code = "from importlib.metadata import distributions as d; print(*{each.name.lower() for each in d()})"
        return set(self.run("python", "-c", code).split())


def install(requirement: str, distributions: Mapping[str, Distribution], path: Path, folder: Path) -> Environment:
    """Make an environment with one requirement: ours out of the wheels, others as the lock has them."""
    uv = [sys.executable, "-m", "uv"]
    here = folder / "here.txt"
    # Whatever an index has under the project's names is not ours.
    here.write_text("".join(f"{each.name} @ {each.wheel.as_uri()}\n" for each in distributions.values()))
    constraints = [f"--constraint={ROOT / 'requirements.lock'}", f"--constraint={here}"]
    _uv([*uv, "venv", "--quiet", "--python", sys.executable, str(path)])
    target = ["--quiet", "--python", str(path), "--compile-bytecode"]
    _uv([*uv, "pip", "install", *target, *constraints, requirement])
    _uv([*uv, "pip", "check", "--quiet", "--python", str(path)])
    return Environment(path, folder)


def _uv(argv: list[str]) -> None:
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def _clean_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
