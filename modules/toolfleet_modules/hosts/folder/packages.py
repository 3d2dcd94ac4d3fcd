"""Provides the packages that tool files ask for, in environments of the host's own.

A file asks for them in itself (PEP 723), or a `requirements.txt` lists them. `uv` resolves and installs them: bounded in
time, and with no more of the process's environment than it needs. A set of packages is in a folder under the digest of
its content, which is never incomplete.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from toolfleet_modules.hosts.guard import signal_group
from toolfleet_registry.system import machine_clock

_log = logging.getLogger("toolfleet.host")

Requirements: TypeAlias = frozenset[str]
"""Lines as PEP 508 has them, each in its normal form."""

_BLOCK = re.compile(r"^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", re.MULTILINE)  # of PEP 723
_MOST_PACKAGES = 200  # packages of one file
_SHOWN = 200

_OWN = "toolfleet-sdk"

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
_LONGEST_ERROR = 700  # characters of it in an error

_DIGEST_LENGTH = 32
_CHECK_SECONDS = 0.1

_ENVIRONMENT_NAME = re.compile("[0-9a-f]{32}")  # nothing else in the folder is touched
_REMOVING = ".removing"
_TOUCH_SECONDS = 3600.0


class RequirementsFault(Exception):
    """The requirements cannot be read. The message says why, in one sentence."""


def requirements_in(text: str) -> Requirements:
    """The packages that a file's block `# /// script` names; none without such a block. Raises `RequirementsFault`."""
    if "# /// script" not in text:
        return frozenset()
    blocks = [each["content"] for each in _BLOCK.finditer(text) if each["type"] == "script"]
    if len(blocks) != 1:
        raise RequirementsFault("It has several blocks `# /// script`, or one without an end.")
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in blocks[0].splitlines())
    try:
        said = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as exc:
        raise RequirementsFault(f"Its block `# /// script` is no TOML: {str(exc)[:_SHOWN]}.") from None
    _check_python(said.get("requires-python"))
    named = said.get("dependencies", [])
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise RequirementsFault("`dependencies` is no list of texts.")
    return _normal(named)


def listed_requirements(text: str) -> Requirements:
    """The packages in a `requirements.txt`, a line each; comments are left out, and options refused. Raises `RequirementsFault`."""
    lines = (re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in text.splitlines())
    named = [line for line in lines if line]
    if option := next((line for line in named if line.startswith("-")), None):
        raise RequirementsFault(f"{option[:_SHOWN]!r} is an option: the host has those, in `tool_install_options`.")
    return _normal(named)


def _check_python(wanted: Any) -> None:
    if wanted is None:
        return
    try:
        is_met = SpecifierSet(wanted).contains(platform.python_version(), prereleases=True)
    except (InvalidSpecifier, TypeError, AttributeError):
        raise RequirementsFault(f"`requires-python` is none: {str(wanted)[:_SHOWN]!r}.") from None
    if not is_met:
        raise RequirementsFault(f"It needs Python {wanted[:_SHOWN]}, and this is {platform.python_version()}.")


def _normal(named: Iterable[str]) -> Requirements:
    found = set[str]()
    for line in named:
        try:
            found.add(str(Requirement(line)))
        except InvalidRequirement:
            raise RequirementsFault(f"{line[:_SHOWN]!r} names no package.") from None
    if len(found) > _MOST_PACKAGES:
        raise RequirementsFault(f"It asks for {len(found)} packages; at most {_MOST_PACKAGES} are installed.")
    return frozenset(found)


@cache
def _host_versions() -> tuple[str, ...]:
    """Return `name==version` of all dependencies of the SDK, sorted."""
    found: dict[str, str] = {}
    left = [_OWN]
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        try:
            known = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = known.version
        for line in known.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


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
    seconds: float = 900.0  # gigabytes over a slow line; `UV_HTTP_TIMEOUT` ends a download that stands still
    kept_seconds: float | None = 30 * 86_400.0  # they can be installed again; a tool of once a month finds them


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
            fixed.write_text("".join(f"{each}\n" for each in _host_versions()), "utf-8")
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
            signal_group(process.pid, signal.SIGKILL)
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
    return words if len(words) <= _LONGEST_ERROR else f"{words[:_LONGEST_ERROR]}…"


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


class Environments:
    """The environments of one folder, which several hosts may share."""

    def __init__(self, options: InstallOptions, installer: Installer) -> None:
        self._options = options
        self._installer = installer
        self.use = EnvironmentUse(options.folder, options.kept_seconds)

    def find(self, requirements: Requirements) -> Path | None:
        """The environment with exactly these, if it is there. From then on it is in use."""
        path = self._options.folder / self._digest(requirements)
        return path if self.use.hold(path) else None

    async def take(self, requirements: Requirements) -> Path:
        """The environment with these, installed if it is not there, and in use from then on. Raises `InstallFailed`."""
        if (found := self.find(requirements)) is not None:
            return found
        digest = self._digest(requirements)
        path, building = self._options.folder / digest, self._options.folder / f".{digest}.building"
        try:
            self._options.folder.mkdir(parents=True, exist_ok=True)
            async with self._locked(digest):
                if self.use.hold(path):  # another host was faster
                    return path
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)  # of one that was interrupted
                try:
                    await self._installer.install(requirements, building)
                    building.mkdir(exist_ok=True)  # of requirements that are not for this machine, nothing is installed
                    building.rename(path)
                    self.use.hold(path)
                finally:
                    shutil.rmtree(building, ignore_errors=True)
        except OSError as exc:
            message = f"Its packages cannot be kept in {self._options.folder}: {exc.strerror or exc}."
            raise InstallFailed(message) from exc
        return path

    @asynccontextmanager
    async def _locked(self, digest: str) -> AsyncGenerator[None]:
        """Have no other process install the same meanwhile. Raises `InstallFailed` if one is at it for too long."""
        with (self._options.folder / f".{digest}.lock").open("wb") as file:
            try:
                async with asyncio.timeout(self._options.seconds):
                    while not _is_taken(file.fileno()):  # noqa: ASYNC110 - of another process
                        await asyncio.sleep(_CHECK_SECONDS)
            except TimeoutError:
                raise InstallFailed("Another host has been installing its packages for too long.") from None
            yield

    def _digest(self, requirements: Requirements) -> str:
        """Return the digest of all that decides what is installed."""
        python = [sys.implementation.cache_tag, sysconfig.get_platform(), os.fspath(sys.base_prefix)]
        rest = [_host_versions(), list(self._options.options), self._options.allow_builds]
        text = json.dumps([sorted(requirements), python, rest])
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _is_taken(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class EnvironmentUse:
    """The use of the environments in `folder`, by one host.

    One that is unused for `kept_seconds` may be removed; `None` keeps all of them.

    A user of one has a shared lock on its folder, which ends with the process, and the folder's time says when it was
    used last.
    """

    def __init__(self, folder: Path, kept_seconds: float | None) -> None:
        self._folder = folder
        self._kept_seconds = kept_seconds
        self._held: dict[Path, int] = {}

    def hold(self, path: Path) -> bool:
        """Use an environment, until `aclose`: it is not removed meanwhile. False if it is not there."""
        if path in self._held:
            if _is_at(self._held[path], path):
                return True
            os.close(self._held.pop(path))
        try:
            descriptor = _opened(path)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being removed
            os.close(descriptor)
            return False
        except OSError as exc:  # a file system that knows no locks: nothing is removed there
            _log.debug("Nothing can be locked in %s: %s", self._folder, exc)
        if not _is_at(descriptor, path):
            os.close(descriptor)
            return False
        self._held[path] = descriptor
        _touch(path)
        return True

    async def keep(self) -> None:
        """Remove unused environments, once, and then mark those in use repeatedly, until cancelled."""
        while True:
            for path in self._held:
                _touch(path)
            await asyncio.to_thread(self.remove_unused)
            await asyncio.sleep(_TOUCH_SECONDS)

    def remove_unused(self) -> None:
        """Remove environments that no host holds, and that were unused for so long. Raises nothing."""
        if self._kept_seconds is None:
            return
        with contextlib.suppress(OSError):
            for path in [*self._folder.iterdir()]:
                if path.name.endswith(_REMOVING):  # of one that was interrupted
                    shutil.rmtree(path, ignore_errors=True)
                elif _ENVIRONMENT_NAME.fullmatch(path.name) and self._is_unused(path):
                    self._remove(path)

    def aclose(self) -> None:
        """Hold none any more; each has been used until now."""
        for path, descriptor in self._held.items():
            _touch(path)
            os.close(descriptor)
        self._held.clear()

    def _is_unused(self, path: Path) -> bool:
        if self._kept_seconds is None:
            return False
        try:
            return machine_clock.wall() - path.stat().st_mtime > self._kept_seconds
        except OSError:
            return False

    def _remove(self, path: Path) -> None:
        """Remove it atomically, as seen by other hosts."""
        doomed = path.with_name(f".{path.name}{_REMOVING}")
        try:
            descriptor = _opened(path)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_unused(path):  # another host has used it meanwhile
                return
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
        except OSError:  # it is in use, or cannot be locked or moved
            return
        finally:
            os.close(descriptor)
        _log.info("Packages that nobody has used for long are removed: %s", path)
        shutil.rmtree(doomed, ignore_errors=True)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether this folder is the open one, and not one that was there before it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # whose time cannot be set is another user's
        os.utime(path)
