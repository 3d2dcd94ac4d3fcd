"""Remembers what the scan found in each file: a file is scanned once, before its first import."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolfleet_modules.hosts.folder.options import FolderOptions
from toolfleet_modules.hosts.folder.scan import ScanFinding, scan
from toolfleet_modules.hosts.folder.source_files import FolderReading, SourceFolder

_log = logging.getLogger("toolfleet.host")


class ScannedFiles:
    """By the mode and the rules of the options."""

    def __init__(self, options: FolderOptions) -> None:
        self._options = options
        self._found: dict[Path, tuple[str, Sequence[ScanFinding]]] = {}  # by path: the digest, and what was found

    def scan_changed(self, reading: FolderReading, folder: SourceFolder) -> None:
        """Scan what was not scanned, as the mode says."""
        found: dict[Path, tuple[str, Sequence[ScanFinding]]] = {}
        for name, file in reading.files.items():
            tree = folder.take_tree(name)
            known = self._found.get(file.path)
            if known is not None and known[0] == file.digest:
                found[file.path] = known
            elif self._options.security != "off" and tree is not None:
                found[file.path] = file.digest, scan(tree, self._options.rules)
                self._tell(file.path, found[file.path][1])
        self._found = found

    def findings(self, reading: FolderReading) -> Mapping[str, Sequence[ScanFinding]]:
        """What was found, by the files' names without `.py`; files without a finding are not there."""
        known = ((file.stem, self._found.get(file.path, ("", ()))[1]) for file in reading.files.values())
        return {stem: findings for stem, findings in known if findings}

    def refused(self, reading: FolderReading) -> frozenset[str]:
        """The files that are not to be imported: in strict mode those with a finding, and links that lead out of the folder."""
        links = {name.removesuffix(".py") for name, fault in reading.faults.items() if fault.kind == "SecurityError"}
        return frozenset(self.findings(reading) if self._options.security == "strict" else ()) | links

    def _tell(self, path: Path, findings: Sequence[ScanFinding]) -> None:
        for finding in findings:
            _log.warning(
                "tool_security_violation file=%s line=%d what=%s mode=%s",
                path,
                finding.line,
                finding.what,
                self._options.security,
            )
