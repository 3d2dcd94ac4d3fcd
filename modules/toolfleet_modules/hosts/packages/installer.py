"""Runs `uv`, which resolves requirements and installs them into a folder: bounded in time, and with no more of the environment than it needs."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfleet_modules.hosts.packages.host_versions import host_versions
from toolfleet_modules.hosts.packages.requirements import Requirements

_PASSED_ON = frozenset(
    {
        "ALL_PROXY",
        "HOME",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "LANG",
        "LC_ALL",
        "NO_PROXY",
        "PATH",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    }
)
_PASSED_ON_PREFIX = "UV_"
_MOST_SAID = 64 * 2**10  # bytes of what it says that are read
_SHOWN = 700  # characters of it in an error


class InstallFailed(Exception):
    """The packages could not be installed. The message says why, for those who need them."""


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """The options of installing.

    `folder`: where environments are kept; `seconds`: for one run of `uv`; `options`: more for it, such as
    `--index-url`.

    `kept_seconds`: an environment that no host has used for so long is removed; `None` keeps all. `allow_builds`: also
    packages without a wheel, whose own code is run when they are built, outside of any fence.
    """

    folder: Path
    allow_builds: bool = False
    options: Sequence[str] = ()
    seconds: float = 300.0
    kept_seconds: float | None = 30 * 86_400.0


class Installer:
    """Runs `uv`. `beside` is the working folder of `uv`, for relative paths and its configuration."""

    def __init__(self, options: InstallOptions, beside: Path) -> None:
        self._options = options
        self._beside = beside

    async def resolve(self, requirements: Requirements) -> None:
        """See whether all of them go together. Raises `InstallFailed`."""
        await self._run(["compile", "--python-version", ".".join(map(str, sys.version_info[:3]))], requirements)

    async def install(self, requirements: Requirements, target: Path) -> None:
        """Install them into a folder. Raises `InstallFailed`; the folder's content is unusable then."""
        await self._run(["install", "--compile-bytecode", "--target", str(target)], requirements)

    async def _run(self, words: Sequence[str], requirements: Requirements) -> None:
        builds = [] if self._options.allow_builds else ["--no-build"]
        with tempfile.TemporaryDirectory(prefix="toolfleet-install-") as name:
            wanted, fixed = Path(name) / "requirements.txt", Path(name) / "constraints.txt"
            wanted.write_text("".join(f"{each}\n" for each in sorted(requirements)), "utf-8")
            fixed.write_text("".join(f"{each}\n" for each in host_versions()), "utf-8")
            given = ["--python", sys.executable, "--no-python-downloads", "--constraints", str(fixed)]
            source = [str(wanted)] if words[0] == "compile" else ["--requirement", str(wanted)]
            await self._uv("pip", *words, "--quiet", *given, *builds, *self._options.options, *source)

    async def _uv(self, *arguments: str) -> None:
        """Run `uv`. Raises `InstallFailed`. In any case it has ended, and so have its children."""
        try:
            process = await asyncio.create_subprocess_exec(
                _uv_program(),
                *arguments,
                cwd=self._beside,
                env={name: value for name, value in os.environ.items() if _is_passed_on(name)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as exc:
            raise InstallFailed(f"uv cannot be run: {exc.strerror}.") from exc
        try:
            async with asyncio.timeout(self._options.seconds):
                said = await _said_by(process)
        except TimeoutError:
            raise InstallFailed(f"Its packages were not installed within {self._options.seconds:g} s.") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())
        if process.returncode:
            raise InstallFailed(f"Its packages cannot be installed: {said or f'uv ended with {process.returncode}'}")


async def _said_by(process: asyncio.subprocess.Process) -> str:
    """Return its last output, in one line, once it has ended."""
    assert process.stderr is not None  # noqa: S101 - it was asked for
    said = b""
    while data := await process.stderr.read(_MOST_SAID):
        said = (said + data)[-_MOST_SAID:]
    await process.wait()
    words = " ".join(said.decode("utf-8", "replace").split())
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"


def _uv_program() -> str:
    """Return the path of `uv`. Raises `InstallFailed` if there is none."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin  # noqa: PLC0415 - may be installed as a program only

        return str(find_uv_bin())
    if (found := shutil.which("uv")) is None:
        raise InstallFailed("Its packages are installed by uv, which is not here: pip install 'toolfleet[hosts]'.")
    return found


def _is_passed_on(name: str) -> bool:
    return name.upper() in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)
