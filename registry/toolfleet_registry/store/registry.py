"""Defines what a registry of tools is: the port that memory, Redis and SQL databases implement, and its search."""

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from toolfleet_registry.searching import SearchDocument, TextIndex
from toolfleet_registry.specs import (
    RegistryEvent,
    ToolFinding,
    ToolRegistration,
    ToolRegistrySnapshot,
    ToolSpec,
    arguments_of,
)

EVENTS_KEPT = 10_000
"""A follower of the events that was away for more of them reads all registrations again."""

VERSIONS_KEPT = 20
"""Specifications of a tool, with the one in force: more would fill a server's memory with versions that are not needed again."""


class ToolRegistry(Protocol):
    """The tools that exist, which of them operators have disabled, and which digests they have pinned.

    Synchronous: asynchronous code calls it in a thread. May be used by several threads and processes at once; every
    change happens as a whole or not at all. A store with a server raises `FleetUnavailable` when that does not answer
    within 5 s: a change may then have happened or not, and repeating it does no harm. A stored registration that cannot
    be read is listed nowhere, with a warning; changing it raises `ValueError`, until it is removed.
    """

    def register(self, spec: ToolSpec, *, keep_enabled: bool = False) -> ToolRegistration:
        """Take in a specification: a new tool, or a new version of one. An identical one changes nothing.

        A tool that gets another version is enabled, unless `keep_enabled` leaves it as it is: enabled or disabled, and,
        if it was rolled back from that very version, rolled back. Raises `ValueError` if the registered one has the same
        version, or none either, and says something else.
        """
        ...

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        """Take in each, in that order, as `register` does, in few round trips; what it would raise stands in its place."""
        ...

    def replace(self, spec: ToolSpec, *, expected: str | None) -> ToolRegistration:
        """Register a specification with any version, and leave the tool enabled or disabled as it is.

        Raises `ValueError` unless the registered one's digest is `expected`; `None`: unless there is none.
        """
        ...

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:
        """The enabled ones, or all, by tool name."""
        ...

    def get(self, tool_name: str, version: str | None = None) -> ToolRegistration | None:
        """The tool, enabled or not: as it is in force, or with the specification of a `version` that is kept."""
        ...

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        """Return the existing ones of these tools, enabled or not, by name."""
        ...

    def search(
        self, text: str = "", tags: Sequence[str] = (), *, include_disabled: bool = False, limit: int = 20
    ) -> list[ToolRegistration]:
        """Return at most `limit` of the enabled ones, or all: with a word of `text`, or its beginning, and all `tags`; the best first.

        Without a word those with the tags, by name. Every registry finds the same. The first search after a change
        reads all registrations, the others ask for the revision only. Raises `ValueError` if `limit` is not above zero.
        """
        ...

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:
        """Enable or disable it. Raises `KeyError` if there is no such tool."""
        ...

    def versions(self, tool_name: str) -> list[ToolRegistration]:
        """Return the tool's last 20 specifications, with the one in force, sorted by Semantic Versioning, the latest last.

        Of several with one version it is the last. Each is as enabled as the tool is; the history is removed with the
        tool, and is in no snapshot. An earlier release that uses the same store keeps no history of its replacements.
        """
        ...

    def rollback(self, tool_name: str, version: str | None) -> ToolRegistration:
        """Put an earlier specification in force again; the tool stays enabled or disabled, and one in force already stays.

        Its `rolled_back_from` says from which version that was, the first one if it is rolled back repeatedly. The
        fleet compares it with the module's offers: a later version ends the rollback, this one and those before it do
        not. `register` and `replace` end it at once. Raises `KeyError` if there is no such tool, and `ValueError` if
        that version is not kept or cannot be read.
        """
        ...

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        """Forget it, if it is there; with `unless_disabled` only if it surely is enabled."""
        ...

    def pins(self) -> dict[str, dict[str, str]]:
        """The approved digests of the pinned modules, by module and tool name."""
        ...

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        """Approve exactly these digests, by tool name, of a module."""
        ...

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        """Approve one more, or another, digest of a pinned module. Raises `KeyError` if it is not pinned."""
        ...

    def unpin(self, module: str) -> None:
        """Remove the module's pins: all its definitions are approved."""
        ...

    def keep_manifests(self, manifests: Mapping[str, str]) -> None:
        """Store the text of these modules' last good manifests, by module, in place of earlier ones.

        They are separate from the registrations: none is an event, none changes the revision, and no snapshot has them.
        An unchanged one is not written again.
        """
        ...

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        """The texts that are kept of these modules, by module."""
        ...

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        """Keep the text of these entries of the fleet's directory, by module, in place of all earlier ones. As of manifests, none is an event."""
        ...

    def kept_modules(self) -> dict[str, str]:
        """The texts that are kept, by module."""
        ...

    def snapshot(self) -> ToolRegistrySnapshot:
        """All that there is at one moment, but for the events and earlier versions."""
        ...

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        """Replace the whole content by the snapshot, at once; the differences are events.

        Raises `ValueError` if it has a tool twice.
        """
        ...

    def note(self, findings: Sequence[ToolFinding]) -> None:
        """Tell those who follow the events of what was found about tools; nothing else changes, the revision neither."""
        ...

    def last_event(self) -> str:
        """The id of the last event that there ever was; '' if there was none."""
        ...

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        """Return the events after the event with that id, oldest first; the last 10,000 are kept.

        Ids grow, as text too, and the number at their end counts the events: a gap says that some are gone, or that
        this release cannot read them. An empty answer is the end, even if unreadable events follow. Raises `ValueError`
        if `after` is no id, or `limit` not above zero. `ToolFleet.modules.events` awaits them; an in-memory registry
        calls the callbacks of `subscribe`.
        """
        ...

    def revision(self) -> str:
        """A text that no earlier state had: another one after every change, of pins too."""
        ...

    def identity(self) -> str:
        """Return the unique id of this registry, which is set on its first use and is the same for every process."""
        ...

    def close(self) -> None:
        """Let go of connections. A closed registry is used no more."""
        ...


class RegistrationSearch:
    """A search over registrations. Keeps them in memory from the first search on; thread-safe."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._known: tuple[str, TextIndex[ToolRegistration]] | None = None

    def find(self, text: str, tags: Sequence[str], *, include_disabled: bool, limit: int) -> list[ToolRegistration]:
        """Implements `ToolRegistry.search`."""
        found = self._index().find(
            text, may=lambda one: include_disabled or one.enabled, tags=frozenset(tags), limit=limit
        )
        # What is in a frozen model's dicts can be changed, and these are asked for again.
        return [one.model_copy(deep=True) for one in found]

    def _index(self) -> TextIndex[ToolRegistration]:
        revision = self._registry.revision()  # first: what changes after it is indexed for the next question
        with self._lock:
            if self._known is None or self._known[0] != revision:
                tools = self._registry.list_all(include_disabled=True)
                self._known = revision, TextIndex((_document(one), one) for one in tools)
            return self._known[1]


def _document(registration: ToolRegistration) -> SearchDocument:
    spec = registration.spec
    return SearchDocument(spec.tool_name, spec.tags, spec.description or "", arguments_of(spec))
