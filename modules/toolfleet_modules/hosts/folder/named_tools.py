"""Admits tools that are named by a dotted path, `acme.tools.read_file`: only those of namespaces that the host trusts."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from toolfleet_modules.hosts.folder.source_files import FileFault


def admitted(names: Iterable[str], trusted: Collection[str]) -> tuple[list[str], Mapping[str, FileFault]]:
    """Those in a trusted namespace, and what is wrong with the others: `acme.toolsmith` is not in `acme.tools`."""
    good: list[str] = []
    faults: dict[str, FileFault] = {}
    for name in sorted(set(names)):
        if any(name == each or name.startswith(f"{each}.") for each in trusted):
            good.append(name)
        else:
            message = "It is in none of the namespaces in `trusted_tool_namespaces`, and was not imported."
            faults[name] = FileFault(Path(name), "UntrustedNamespace", message)
    return good, faults
