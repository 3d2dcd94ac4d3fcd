"""Lists the files of a folder that are not served as they stand, for people to see."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from toolfleet_modules.hosts.folder.scan import ScanFinding
from toolfleet_modules.hosts.folder.source_files import (
    REQUIREMENTS_FILE,
    FileFault,
    FolderReading,
    SourceFile,
    nothing_in,
)
from toolfleet_registry.contracts.load_errors import NO_TOOLS, InEffect, ToolLoadError
from toolfleet_registry.time import machine_clock

_log = logging.getLogger("toolfleet.host")

_MOST = 1000  # in a manifest
_MOST_FINDINGS = 5  # told of one file
_LONGEST_MESSAGE = 1000


class LoadErrors:
    """`now` has the latest, each with the time at which it was found first."""

    def __init__(self) -> None:
        self.now: list[ToolLoadError] = []

    def set_unreadable(self, folder: Path, why: str) -> bool:
        """Note that the folder itself cannot be read; returns whether that is news."""
        return self._set([_error(FileFault(folder, "FolderUnreadable", why), "previous")])

    def renew(
        self,
        reading: FolderReading,
        findings: Mapping[str, Sequence[ScanFinding]],
        faults: Mapping[str, FileFault],
        served: "Served",
    ) -> bool:
        """Note what a reading came to: what the scan found, what did not load, and what has no tools; returns whether anything is news."""
        refused = findings.keys() - served.files.keys()
        faults = {**_without_tools(reading, served, {*faults, *refused}), **faults}

        def state(stem: str) -> InEffect:  # of a file: the same in all that is said of it
            is_broken = stem in faults and faults[stem].kind != NO_TOOLS
            return served.version_of(stem, reading.files.get(f"{stem}.py"), is_broken=is_broken)

        errors = [_error(each, state(name.removesuffix(".py"))) for name, each in reading.faults.items()]
        for stem, fault in sorted(faults.items()):
            errors.append(_error(fault, "previous" if stem == REQUIREMENTS_FILE else state(stem)))
        for stem, found in findings.items():
            file = reading.files[f"{stem}.py"]
            what = ", ".join(f"{each.what} (line {each.line})" for each in found[:_MOST_FINDINGS])
            fault = FileFault(file.path, "SecurityError", f"It {what}.", found[0].line)
            errors.append(_error(fault, state(stem)))
        return self._set(errors)

    def _set(self, errors: Iterable[ToolLoadError]) -> bool:
        known = {_what(each): each for each in self.now}
        latest = [known.get(_what(each), each) for each in errors][:_MOST]
        for each in latest:
            if _what(each) not in known:
                is_note = each.error_type == NO_TOOLS
                _log.log(
                    logging.INFO if is_note else logging.ERROR,
                    "%s file=%s error=%s line=%s in_effect=%s: %s",
                    "tool_file_without_tools" if is_note else "tool_load_failed",
                    each.file,
                    each.error_type,
                    each.line,
                    each.in_effect,
                    each.message,
                )
        is_changed = latest != self.now
        self.now = latest
        return is_changed


class Served:
    """Says which version of a file serves calls: `files` are those that a process has, `stems` those with tools in effect."""

    def __init__(self, files: Mapping[str, SourceFile], stems: Iterator[str]) -> None:
        self.files = files
        self.stems = frozenset(stems)

    def version_of(self, stem: str, current: SourceFile | None, *, is_broken: bool) -> InEffect:
        """`current` is the file as it is now, if it can be read; `is_broken`: it is not in effect as it stands."""
        served = self.files.get(stem)
        if served is None:
            return "none"
        if current is not None and served.digest == current.digest:
            return "current" if stem in self.stems or not is_broken else "none"
        return "previous" if stem in self.stems or not served.has_tools else "none"


def _without_tools(reading: FolderReading, served: Served, known: Collection[str]) -> Mapping[str, FileFault]:
    """Return why files serve nothing of which nothing else is known."""
    files = [each for each in reading.files.values() if each.stem not in served.stems and each.stem not in known]
    return {each.stem: fault for each in files if (fault := nothing_in(each)) is not None}


def _error(fault: FileFault, in_effect: InEffect) -> ToolLoadError:
    return ToolLoadError(
        file=str(fault.path),
        error_type=fault.kind[:100],
        message=fault.message[:_LONGEST_MESSAGE],
        timestamp=machine_clock.wall(),
        line=fault.line,
        in_effect=in_effect,
    )


def _what(error: ToolLoadError) -> tuple[object, ...]:
    return error.file, error.error_type, error.message, error.line, error.in_effect
