"""Provides the packages that tool files ask for, in environments of the host's own.

`uv` resolves and installs them: in bounded time, and with no more of the process's environment than it needs. A set of
packages is in a folder named by the digest of its content, and the folder is never incomplete. Requirements that are
compatible share one environment.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from toolfleet_modules.hosts.child_process import take_lock
from toolfleet_modules.hosts.folder.source_files import (
    REQUIREMENTS_FILE,
    FileFault,
    FolderReading,
    Requirements,
    SourceFile,
)
from toolfleet_modules.hosts.guard import signal_group
from toolfleet_registry.system import machine_clock

_log = logging.getLogger("toolfleet.host")

Files = dict[str, SourceFile]
"""Files by their names without `.py`."""

_RETRY_SECONDS = 300.0  # until what could not be installed is tried again: an index may have been away

Key = TypeVar("Key", bound=Hashable)

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

_ENVIRONMENT_NAME = re.compile("[0-9a-f]{32}")  # nothing else in the folder is touched
_REMOVING = ".removing"
_TOUCH_SECONDS = 3600.0
_KEPT_SECONDS = 30 * 86_400.0  # they can be installed again; a tool of once a month finds them


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

    `allow_builds`: also packages without a wheel, which run their own code when they are built, outside of any fence.
    """

    folder: Path
    allow_builds: bool = False
    options: Sequence[str] = ()
    seconds: float = 900.0  # gigabytes over a slow line; `UV_HTTP_TIMEOUT` ends a download that stands still


class Installer:
    """Runs `uv`. `beside` is the working folder of `uv`, for relative paths and its configuration."""

    def __init__(self, options: InstallOptions, beside: Path) -> None:
        self._options = options
        self._beside = beside

    async def resolve(self, requirements: Requirements) -> None:
        """Check whether all of them are compatible. Raises `InstallFailed`."""
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
    assert process.stderr is not None
    said = b""
    while data := await process.stderr.read(_MOST_SAID):
        said = (said + data)[-_MOST_SAID:]
    await process.wait()
    words = " ".join(said.decode("utf-8", "replace").split())
    return words if len(words) <= _LONGEST_ERROR else f"{words[:_LONGEST_ERROR]}…"


def _uv_program() -> str:
    """Return the path of `uv`. Raises `InstallFailed` if there is none."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin  # may be installed as a program only

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
        self.use = EnvironmentUse(options.folder)

    def find(self, requirements: Requirements) -> Path | None:
        """Return the environment with exactly these, if there is one, and use it from then on."""
        path = self._options.folder / self._digest(requirements)
        return path if self.use.hold(path) else None

    async def take(self, requirements: Requirements) -> Path:
        """Return the environment with these, and use it from then on; it is installed if needed. Raises `InstallFailed`."""
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
                await take_lock(file.fileno(), seconds=self._options.seconds)
            except TimeoutError:
                raise InstallFailed("Another host has been installing its packages for too long.") from None
            yield

    def _digest(self, requirements: Requirements) -> str:
        """Return the digest of all that decides what is installed."""
        python = [sys.implementation.cache_tag, sysconfig.get_platform(), os.fspath(sys.base_prefix)]
        rest = [_host_versions(), list(self._options.options), self._options.allow_builds]
        text = json.dumps([sorted(requirements), python, rest])
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


class EnvironmentUse:
    """The use of the environments in `folder`, by one host.

    One that is unused for 30 days may be removed.

    A user of one has a shared lock on its folder, which ends with the process, and the folder's time says when it was
    used last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        try:
            return machine_clock.wall() - path.stat().st_mtime > _KEPT_SECONDS
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
        _log.info("Packages that were not used for a long time are removed: %s", path)
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


class FilePackages:
    """The packages of one folder's files.

    `on_ready` is called when requested packages have come, or are unavailable.
    """

    def __init__(self, folder: Path, options: InstallOptions, on_ready: Callable[[], None]) -> None:
        installer = Installer(options, folder)
        environments = Environments(options, installer)
        self._folder = folder
        self._listed: Requirements | None = None  # of the `requirements.txt` that is in effect
        self.sets = PackageSets(environments, installer, on_ready)
        self.use = environments.use

    def given(self, reading: FolderReading, files: Files) -> tuple[Files, Mapping[str, FileFault]]:
        """Return the files with all the packages that they need, and the reasons why some cannot be loaded so.

        Nothing is installed if no file has tools. Until a changed `requirements.txt` is installed, the previous one holds.
        """
        if not any(each.has_tools for each in files.values()):
            return files, {}
        faults: dict[str, FileFault] = {}
        listed = (self._listed or frozenset()) if REQUIREMENTS_FILE in reading.faults else reading.requirements
        base = listed if self.sets.failure(listed) is None or self._listed is None else self._listed
        self.sets.want([listed, *(base | each.requirements for each in files.values() if each.has_tools)])
        if self.sets.is_ready(listed):
            self._listed = listed
        else:
            faults[REQUIREMENTS_FILE] = self._fault(self._folder / REQUIREMENTS_FILE, listed)
        base = listed if self._listed is None else self._listed
        complete = {stem: replace(each, requirements=base | each.requirements) for stem, each in files.items()}
        for stem, each in complete.items():
            if each.has_tools and not self.sets.is_ready(each.requirements):
                faults[stem] = self._fault(each.path, each.requirements)
        return complete, faults

    def groups(self, files: Files) -> dict[Path | None, list[str]]:
        """Divide the files with tools by where their packages are."""
        return self.sets.groups({stem: each.requirements for stem, each in files.items() if each.has_tools})

    def _fault(self, path: Path, wanted: Requirements) -> FileFault:
        if (why := self.sets.failure(wanted)) is not None:
            return FileFault(path, "InstallError", why)
        return FileFault(path, "Installing", "Its packages are being installed.")


class PackageSets:
    """The environments of one host's requirements. Installing runs in the background: `on_ready` is called at its end."""

    def __init__(self, environments: Environments, installer: Installer, on_ready: Callable[[], None]) -> None:
        self._environments = environments
        self._installer = installer
        self._on_ready = on_ready
        self._ready: dict[Requirements, Path] = {}
        self._failed: dict[Requirements, tuple[str, float]] = {}
        self._installing: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a failed installation must be tried again."""
        now = machine_clock.monotonic()
        return any(now - at > _RETRY_SECONDS for _, at in self._failed.values())

    def forget_failures(self, *, is_forced: bool) -> None:
        """Have failed installations tried again: all of them, or the due ones."""
        now = machine_clock.monotonic()
        self._failed = {
            key: (message, at)
            for key, (message, at) in self._failed.items()
            if not is_forced and now - at <= _RETRY_SECONDS
        }

    def want(self, wanted: Iterable[Requirements]) -> None:
        """Have these installed, as far as they are not there."""
        sets = {each for each in wanted if each}
        self._ready = {each: path for each, path in self._ready.items() if path.is_dir()}
        for each in [frozenset[str]().union(*sets), *sets]:
            if each and each not in self._ready and (found := self._environments.find(each)) is not None:
                self._ready[each] = found
        missing = [each for each in sets if not self.is_ready(each) and each not in self._failed]
        if missing and self._installing is None:
            good = [each for each in sets if each not in self._failed]
            self._installing = asyncio.ensure_future(self._install(good))
            self._installing.add_done_callback(self._end)

    def is_ready(self, wanted: Requirements) -> bool:
        """Return whether an environment has all of these."""
        return not wanted or any(wanted <= each for each in self._ready)

    def failure(self, wanted: Requirements) -> str | None:
        """Return why these are unavailable; `None` as long as they may come."""
        found = self._failed.get(wanted)
        return None if found is None else found[0]

    def groups(self, wanted: Mapping[Key, Requirements]) -> dict[Path | None, list[Key]]:
        """Divide the ready sets into as few environments as possible; keys without packages go with the first, which is the largest group."""
        left = {key: each for key, each in wanted.items() if each}
        found: dict[Path | None, list[Key]] = {}
        while left:
            covered = {env: [key for key, each in left.items() if each <= env] for env in self._ready}
            best = max(covered, key=lambda env: (len(covered[env]), -len(env), sorted(env)), default=frozenset())
            if not covered.get(best):  # an environment has been taken away: their imports say what is missing
                found[None] = list(left)
                break
            found[self._ready[best]] = covered[best]
            left = {key: each for key, each in left.items() if not each <= best}
        rest = [key for key, each in wanted.items() if not each]
        if rest or not found:
            found.setdefault(next(iter(found), None), []).extend(rest)
        return found

    async def aclose(self) -> None:
        """Cancel the running installation."""
        if self._installing is not None:
            self._installing.cancel()
            await asyncio.gather(self._installing, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._installing = None
        if task.cancelled():
            return
        if (exc := task.exception()) is not None:
            _log.error("Packages were not installed", exc_info=exc)
        self._on_ready()

    async def _install(self, sets: Collection[Requirements]) -> None:
        """Install all together, or if that is not possible, as many together as are compatible."""
        together = frozenset[str]().union(*sets)
        try:
            self._ready[together] = await self._environments.take(together)
        except InstallFailed as exc:
            if len(sets) == 1:
                self._fail(sets, exc)
                return
        else:
            return
        for group in await self._compatible(sets):
            union = frozenset[str]().union(*group)
            try:
                self._ready[union] = await self._environments.take(union)
            except InstallFailed as exc:
                self._fail(group, exc)

    async def _compatible(self, sets: Collection[Requirements]) -> list[list[Requirements]]:
        """Return compatible sets, each with the first ones that it fits; one that cannot be installed by itself fails."""
        groups: list[list[Requirements]] = []
        for each in sorted(sets, key=sorted):
            if self.is_ready(each):
                continue
            try:
                await self._installer.resolve(each)
            except InstallFailed as exc:
                self._fail([each], exc)
                continue
            for group in groups:
                if await self._goes(each.union(*group)):
                    group.append(each)
                    break
            else:
                groups.append([each])
        return groups

    async def _goes(self, requirements: Requirements) -> bool:
        try:
            await self._installer.resolve(requirements)
        except InstallFailed:
            return False
        return True

    def _fail(self, sets: Iterable[Requirements], exc: InstallFailed) -> None:
        for each in sets:
            self._failed[each] = str(exc), machine_clock.monotonic()
