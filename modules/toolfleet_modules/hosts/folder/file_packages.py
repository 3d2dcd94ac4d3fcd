"""Gives the files of a tool folder the packages that they ask for, and says which files have to wait for theirs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from toolfleet_modules.hosts.folder.source_files import REQUIREMENTS_FILE, FileFault, FolderReading, SourceFile
from toolfleet_modules.hosts.packages.environments import Environments
from toolfleet_modules.hosts.packages.installer import Installer, InstallOptions
from toolfleet_modules.hosts.packages.package_sets import PackageSets
from toolfleet_modules.hosts.packages.requirements import Requirements

Files = dict[str, SourceFile]
"""By their names without `.py`."""


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
        """The files with all the packages that they need, and why which of them cannot be loaded so.

        Nothing is installed where no file has tools. Until a changed `requirements.txt` is installed, the one before holds.
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
