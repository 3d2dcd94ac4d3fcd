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
from toolfleet_registry.store import rules

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

    _search: "RegistrationSearch"

    def register(self, spec: ToolSpec, *, keep_enabled: bool = False) -> ToolRegistration:
        """Register a specification: a new tool, or a new version of one. An identical specification changes nothing.

        Args:
            spec: The specification.
            keep_enabled: Whether a tool that gets another version stays as it is: enabled or disabled, and, if it was rolled
                back from that very version, rolled back. Otherwise it is enabled.

        Returns:
            The registration in force.

        Raises:
            ValueError: The registered specification has the same version, or neither has one, and they differ.

        """
        ...

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        """Register several specifications in this order, as `register` does, in few round trips.

        Args:
            specs: The specifications.
            keep_enabled: As in `register`.

        Returns:
            For each specification its registration, or the error that `register` would raise.

        """
        ...

    def replace(self, spec: ToolSpec, *, expected: str | None) -> ToolRegistration:
        """Register a specification with any version, and leave the tool enabled or disabled as it is.

        Args:
            spec: The specification.
            expected: The digest of the registered one; None: there is none.

        Returns:
            The registration in force.

        Raises:
            ValueError: The registered specification is not the expected one.

        """
        ...

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:
        """Return the registrations, sorted by tool name.

        Args:
            include_disabled: Whether disabled tools are included.

        """
        ...

    def get(self, tool_name: str, version: str | None = None) -> ToolRegistration | None:
        """Return the registration of a tool, enabled or not.

        Args:
            tool_name: The tool's name.
            version: An earlier version that is kept; None: the one in force.

        Returns:
            The registration, or None if there is none.

        """
        ...

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        """Return the registrations of several tools, enabled or not.

        Args:
            tool_names: The tools' names.

        Returns:
            The existing registrations, by name.

        """
        ...

    def search(
        self, text: str = "", tags: Sequence[str] = (), *, include_disabled: bool = False, limit: int = 20
    ) -> list[ToolRegistration]:
        """Find tools by words and tags. Every registry finds the same.

        The first search after a change reads all registrations; the others only ask for the revision.

        Args:
            text: Words, or beginnings of words, of which one must match. Without a word, all tools with the tags match.
            tags: Tags that a tool must have, all of them.
            include_disabled: Whether disabled tools are included.
            limit: The number of registrations to return.

        Returns:
            The best matches first, or sorted by name if there is no text.

        Raises:
            ValueError: The limit is not above zero.

        """
        rules.check_limit(limit)
        return self._search.find(text, tags, include_disabled=include_disabled, limit=limit)

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:
        """Enable or disable a tool.

        Args:
            tool_name: The tool's name.
            enabled: Whether it is to be enabled.

        Returns:
            The registration in force.

        Raises:
            KeyError: There is no such tool.

        """
        ...

    def versions(self, tool_name: str) -> list[ToolRegistration]:
        """Return the last 20 specifications of a tool, with the one in force.

        Each is shown as enabled as the tool is. The history is removed with the tool, and is in no snapshot. An earlier
        release that uses the same store keeps no history of the versions that it replaces.

        Args:
            tool_name: The tool's name.

        Returns:
            The registrations, sorted by Semantic Versioning, the latest last; of several with one version, the last.

        """
        ...

    def rollback(self, tool_name: str, version: str | None) -> ToolRegistration:
        """Put an earlier specification in force again. The tool stays enabled or disabled.

        `rolled_back_from` of the registration is the version from which it was rolled back, the first one after repeated
        rollbacks. The fleet compares it with the module's offers: a later version ends the rollback, this version and earlier
        ones do not. `register` and `replace` end it at once.

        Args:
            tool_name: The tool's name.
            version: The version to put in force. If it is in force already, nothing changes.

        Returns:
            The registration in force.

        Raises:
            KeyError: There is no such tool.
            ValueError: That version is not kept, or cannot be read.

        """
        ...

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        """Remove a tool, if it exists.

        Args:
            tool_name: The tool's name.
            unless_disabled: Whether the tool is only removed if it is certainly enabled.

        """
        ...

    def pins(self) -> dict[str, dict[str, str]]:
        """Return the approved digests of the pinned modules, by module and tool name."""
        ...

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        """Approve exactly these digests of a module's tools.

        Args:
            module: The module's name.
            digests: Digests by tool name.

        """
        ...

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        """Approve the digest of one tool of a pinned module, in addition to or instead of an earlier one.

        Args:
            module: The module's name.
            tool_name: The tool's name.
            digest: The digest.

        Raises:
            KeyError: The module is not pinned.

        """
        ...

    def unpin(self, module: str) -> None:
        """Remove the pins of a module: all its definitions are approved.

        Args:
            module: The module's name.

        """
        ...

    def keep_manifests(self, manifests: Mapping[str, str]) -> None:
        """Store the last good manifests of modules, in place of earlier ones.

        They are separate from the registrations: they cause no event and no new revision, and are in no snapshot. An unchanged
        manifest is not written again.

        Args:
            manifests: The texts by module.

        """
        ...

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        """Return the stored manifests of modules.

        Args:
            modules: The modules' names.

        Returns:
            The texts by module.

        """
        ...

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        """Store entries of the fleet's directory in place of all earlier ones. This causes no event.

        Args:
            entries: The texts by module.

        """
        ...

    def kept_modules(self) -> dict[str, str]:
        """Return the stored entries of the fleet's directory, by module."""
        ...

    def snapshot(self) -> ToolRegistrySnapshot:
        """Return all content at one moment, except events and earlier versions."""
        ...

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        """Replace the whole content by a snapshot, at once; the differences are events.

        Args:
            snapshot: The snapshot.

        Raises:
            ValueError: It has a tool twice.

        """
        ...

    def note(self, findings: Sequence[ToolFinding]) -> None:
        """Add events about what was found about tools. Nothing else changes, and the revision stays.

        Args:
            findings: The findings.

        """
        ...

    def last_event(self) -> str:
        """Return the id of the last event that there ever was, or '' if there was none."""
        ...

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        """Return the events after an event, oldest first; the last 10,000 are kept.

        Ids grow, also compared as text, and the number at their end counts the events: a gap says that some are gone, or that
        this release cannot read them. An empty answer is the end, even if unreadable events follow. `ToolFleet.modules.events`
        awaits events; an in-memory registry calls the callbacks of `subscribe`.

        Args:
            after: The id of an event; '' for the oldest ones.
            limit: The number of events to return.

        Returns:
            The events.

        Raises:
            ValueError: `after` is no id, or the limit is not above zero.

        """
        ...

    def revision(self) -> str:
        """Return a text that changes with every change, also of pins; no earlier state had it."""
        ...

    def identity(self) -> str:
        """Return the unique id of this registry, which is set on its first use and is the same for every process."""
        ...

    def close(self) -> None:
        """Close the connections. A closed registry cannot be used any more."""
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
