"""Stores, lists, rolls back and removes agents' profiles, in any of the profile stores."""

import contextlib
from collections.abc import Callable
from typing import Self, TypeAlias

from toolfleet_registry.agents.stored.entries import (
    KEPT_VERSIONS,
    PROFILES,
    ProfileEntry,
    ProfileHistory,
    ProfileVersion,
    agent_seal,
    read_history,
    read_profile,
    written,
)
from toolfleet_registry.config.agent_profile import AgentProfile, check_agent_name
from toolfleet_registry.errors import MessageRefused, NoSuchProfile, OperationRefused, ProfileChanged
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.store.documents import Changed, Documents, DocumentStore
from toolfleet_registry.store.factory import open_documents
from toolfleet_registry.system import fleet_clock

LARGEST_BYTES = 32_768
"""Of one profile as JSON: every process has all of them in memory."""

_Change: TypeAlias = Callable[[ProfileHistory | None], tuple[AgentProfile | None, int | None]]
"""What is to be, by what was before, and the earlier version that it is."""

_TRIES = 5  # at a name that others are changing at the same moment


class StoredProfiles:
    """The stored profiles, synchronous as the store is. Raises `FleetUnavailable` when the store does not answer.

    `seal` is made by `agent_seal`. `expected` is the version number that the caller has seen, 0 for none; if the
    current one is another, `ProfileChanged` is raised.
    """

    def __init__(self, store: DocumentStore, seal: TextSeal) -> None:
        self._store, self._seal = store, seal

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the stored profiles of the fleet with these settings; the caller closes them.

        Raises `SettingsError`; does not connect yet.
        """
        return cls(open_documents(settings, PROFILES), agent_seal(settings))

    def put(self, name: str, profile: AgentProfile, *, by: str, expected: int | None = None) -> ProfileVersion:
        """Store a profile, in the place of the one that is there. Returns its version. Raises `OperationRefused`."""
        try:
            check_agent_name(name)
        except ValueError as exc:
            raise OperationRefused(f"{exc}.") from exc
        if (size := len(profile.model_dump_json().encode())) > LARGEST_BYTES:
            raise OperationRefused(f"A profile has at most {LARGEST_BYTES} bytes as JSON, and this one {size}.")
        return self._change(name, lambda _: (profile, None), by=by, expected=expected)

    def rollback(self, name: str, version: int, *, by: str, expected: int | None = None) -> ProfileVersion:
        """Put an earlier version again, as a new one. Raises `OperationRefused` for one that is not kept, or was a removal."""

        def earlier(history: ProfileHistory | None) -> tuple[AgentProfile, int]:
            versions = () if history is None else history.versions
            found = next((one for one in versions if one.version == version), None)
            if found is None:
                raise NoSuchProfile(f"There is no version {version} of agent {name[:80]!r}.")
            if found.profile is None:
                raise OperationRefused(
                    f"With version {version} agent {name!r} was removed: there is nothing to put again."
                )
            return found.profile, version

        return self._change(name, earlier, by=by, expected=expected)

    def remove(self, name: str, *, by: str, expected: int | None = None) -> ProfileVersion:
        """Let an agent have no stored profile. Its versions are kept. Raises `NoSuchProfile`."""

        def there(history: ProfileHistory | None) -> tuple[None, None]:
            if history is not None and history.last.profile is None:
                raise NoSuchProfile(f"The registry has no profile of agent {name[:80]!r}.")
            return None, None

        if not self._store.history(name):
            raise NoSuchProfile(f"The registry has no profile of agent {name[:80]!r}.")
        return self._change(name, there, by=by, expected=expected)

    def read(self) -> dict[str, ProfileVersion | str]:
        """The version in force of each agent, by name; a text for one that counts for nothing: why."""
        found = self._store.read()
        entries = {} if found is None else found.entries
        return {name: read_profile(name, text, self._seal) for name, text in sorted(entries.items())}

    def versions(self, name: str) -> list[ProfileVersion]:
        """Return the kept versions, the latest last. Raises `NoSuchProfile`."""
        text = self._store.history(name)
        history = read_history(name, text, self._seal) if text else None
        if history is None:
            raise NoSuchProfile(f"The registry has no versions of agent {name[:80]!r} that count here.")
        return list(history.versions)

    def texts(self, known: str = "") -> Documents | None:
        """As they are stored, for a copy; `None` if the revision is the one that is known."""
        return self._store.read(known)

    def sign_again(self) -> None:
        """Sign with the fleet's key what was signed with one of its old keys, so that these can go."""
        for name, text in self._store.histories().items():
            with contextlib.suppress(MessageRefused):
                content = self._seal.read(text)
                history = read_history(name, text, self._seal)
                if history is not None and self._seal.sign(content) != text:
                    self._replace(name, text, history)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _change(self, name: str, change: _Change, *, by: str, expected: int | None) -> ProfileVersion:
        for _ in range(_TRIES):
            text = self._store.history(name)
            before = read_history(name, text, self._seal) if text else None
            last = 0 if before is None else before.last.version
            there = 0 if before is None or before.last.profile is None else last
            if expected is not None and expected != there:
                raise ProfileChanged(name, there)
            profile, rolled_back_from = change(before)
            made = ProfileVersion(
                version=last + 1, at=fleet_clock.now(), by=by, profile=profile, rolled_back_from=rolled_back_from
            )
            earlier = () if before is None else before.versions
            history = ProfileHistory(name=name, versions=(*earlier, made)[-KEPT_VERSIONS:])
            match self._replace(name, text, history):
                case Changed.DONE:
                    return made
                case Changed.FULL:
                    self._forget_one()
                case Changed.CONFLICT if expected is not None:
                    raise ProfileChanged(name, None)
                case Changed.CONFLICT:
                    continue
        raise OperationRefused(f"Others are changing agent {name!r} at this moment: try again.")

    def _replace(self, name: str, expected: str, history: ProfileHistory) -> Changed:
        is_removed = history.last.profile is None
        entry = "" if is_removed else self._seal.sign(written(ProfileEntry(name=name, version=history.last)))
        return self._store.change(name, expected=expected, history=self._seal.sign(written(history)), entry=entry)

    def _forget_one(self) -> None:
        """Make a place: of the removed ones that which has been so for the longest has its versions forgotten."""
        texts = self._store.histories()
        read = {name: read_history(name, text, self._seal) for name, text in texts.items()}
        removed = [history for history in read.values() if history is not None and history.last.profile is None]
        if not removed:
            raise OperationRefused(
                f"There are {PROFILES.most} agents' profiles already: remove some that are not used."
            )
        oldest = min(removed, key=lambda history: history.last.at)
        self._store.change(oldest.name, expected=texts[oldest.name], history="", entry="")
