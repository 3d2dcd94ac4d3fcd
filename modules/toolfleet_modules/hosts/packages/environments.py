"""Keeps environments of installed packages on disk, each under the digest of its content, and never an incomplete one."""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from toolfleet_modules.hosts.packages.host_versions import host_versions
from toolfleet_modules.hosts.packages.installer import Installer, InstallFailed, InstallOptions
from toolfleet_modules.hosts.packages.requirements import Requirements
from toolfleet_registry.time import machine_clock

_log = logging.getLogger("toolfleet.host")

_DIGEST_LENGTH = 32
_CHECK_SECONDS = 0.1

_ENVIRONMENT_NAME = re.compile("[0-9a-f]{32}")  # nothing else in the folder is touched
_REMOVING = ".removing"
_TOUCH_SECONDS = 3600.0


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
        rest = [host_versions(), list(self._options.options), self._options.allow_builds]
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
