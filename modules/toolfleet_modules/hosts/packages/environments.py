"""Keeps environments of installed packages on disk, each under the digest of what is in it, and never half of one."""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from toolfleet_modules.hosts.packages.environment_use import EnvironmentUse
from toolfleet_modules.hosts.packages.host_versions import host_versions
from toolfleet_modules.hosts.packages.installer import Installer, InstallFailed, InstallOptions
from toolfleet_modules.hosts.packages.requirements import Requirements

_DIGEST_LENGTH = 32
_CHECK_SECONDS = 0.1


class Environments:
    """Those of one folder, which several hosts may share."""

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
        """Of all that decides what is installed."""
        python = [sys.implementation.cache_tag, sysconfig.get_platform(), os.fspath(sys.base_prefix)]
        rest = [host_versions(), list(self._options.options), self._options.allow_builds]
        text = json.dumps([sorted(requirements), python, rest])
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _is_taken(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
