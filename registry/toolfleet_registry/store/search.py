"""Searches the registrations of a store."""

import threading
from collections.abc import Sequence

from toolfleet_registry.manifests.specs import ToolRegistration, arguments_of
from toolfleet_registry.searching import SearchDocument, TextIndex
from toolfleet_registry.store.port import ToolRegistry


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
