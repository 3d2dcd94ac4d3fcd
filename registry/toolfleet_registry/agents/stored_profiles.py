"""Stores agents' profiles with their versions, and keeps a copy of them in the fleet's Redis, where agents and workers read."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Self, TypeAlias, TypeVar, cast

from pydantic import Field, ValidationError
from redis.asyncio import Redis

from toolfleet_registry.config.agent_profile import AGENT_NAME, MOST_PROFILES, AgentProfile, check_agent_name
from toolfleet_registry.contracts.message import Message
from toolfleet_registry.errors import MessageRefused, NoSuchProfile, OperationRefused, ProfileChanged
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import SigningSettings, TextSeal
from toolfleet_registry.store.documents import (
    NOTHING_KEPT,
    Changed,
    DocumentKind,
    DocumentNames,
    Documents,
    DocumentStore,
    copying,
)
from toolfleet_registry.system import fleet_clock

KEPT_VERSIONS = 20
"""How many versions of each agent are kept, with the one in force."""

LARGEST_BYTES = 32_768
"""The size of one profile as JSON: every process has all of them in memory."""

_TRIES = 5  # at a profile, or at the copy, that others are changing at the same moment

T = TypeVar("T")

_PATIENCE_SECONDS = 5


def profile_names(keys: Keys) -> DocumentNames:
    """Return the keys of agents' profiles in Redis. A change of theirs is announced as one of the manifests."""
    names = keys.registry
    return DocumentNames(
        names.agents,
        names.agents_revision,
        histories=names.agent_histories,
        announced=keys.manifests_revision,
        channel=keys.manifests_changed,
    )


PROFILES = DocumentKind(most=MOST_PROFILES, names=profile_names, table="toolfleet_registry_agents", has_history=True)
"""The documents that are agents' profiles, by their names: `ProfileEntry` and `ProfileHistory`."""


class ProfileVersion(Message):
    """One version of an agent's profile. A field that this release does not know could narrow it: it counts for nothing here."""

    version: Annotated[int, Field(ge=1)]
    """Its number; each change has the next one, also a removal."""
    at: float
    """When it was stored, in seconds since the epoch."""
    by: str
    """The operator who stored it, as the audit names them."""
    profile: AgentProfile | None = None
    """The profile; `None`: this version removed it."""
    rolled_back_from: int | None = None
    """The earlier version that was put again."""


class ProfileEntry(Message):
    """The profile in force, as it is stored: with its name, so that none can be put in another's place."""

    name: Annotated[str, Field(pattern=f"^{AGENT_NAME}$")]
    """The agent of the profile."""
    version: ProfileVersion
    """The version in force."""


class ProfileHistory(Message):
    """The versions of one agent's profile, as they are stored."""

    name: Annotated[str, Field(pattern=f"^{AGENT_NAME}$")]
    """The agent of the profile."""
    versions: Annotated[tuple[ProfileVersion, ...], Field(min_length=1, max_length=KEPT_VERSIONS)]
    """The oldest first; the last is in force, or has removed it."""

    @property
    def last(self) -> ProfileVersion:
        """The latest."""
        return self.versions[-1]


def agent_seal(settings: SigningSettings) -> TextSeal:
    """Return the seal that signs profiles, so that write access to the store is not enough to create one.

    Raises `SettingsError`.
    """
    return TextSeal(settings.signing_key, purpose="agent profile", old_keys=settings.signing_keys_old)


def written(message: ProfileEntry | ProfileHistory) -> str:
    """Return the entry as JSON without fields at their defaults, so that earlier releases can read profiles without newer fields."""
    return message.model_dump_json(exclude_defaults=True)


def read_profile(name: str, text: str, seal: TextSeal) -> ProfileVersion | str:
    """Return the version in force that a text is, or why it counts for nothing, in a few words that quote none of it."""
    try:
        entry = ProfileEntry.model_validate_json(seal.read(text))
    except MessageRefused as exc:
        return str(exc).replace("The message", "What is stored of it").rstrip(".")
    except (ValidationError, ValueError) as exc:
        count = exc.error_count() if isinstance(exc, ValidationError) else 1
        return f"what is stored of it is wrong in {count} places"
    if entry.name != name:
        return "what is stored of it is another agent's"
    return entry.version if entry.version.profile is not None else "what is stored of it has no profile"


def read_history(name: str, text: str, seal: TextSeal) -> ProfileHistory | None:
    """Parse a stored history; `None` if it is unreadable, not signed by this fleet, or another agent's."""
    try:
        history = ProfileHistory.model_validate_json(seal.read(text))
    except (MessageRefused, ValueError):
        return None
    return history if history.name == name else None


_Change: TypeAlias = Callable[[ProfileHistory | None], tuple[AgentProfile | None, int | None]]
"""What is to be, by what was before, and the earlier version that it is."""


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
        from toolfleet_registry.store.factory import open_documents  # agents and workers read only

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
        """Return the version in force of each agent, by name; a text for one that counts for nothing: why."""
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

    def texts(self) -> Documents | None:
        """Return the stored documents, for a copy."""
        return self._store.read("")

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


def is_elsewhere(settings: Settings) -> bool:
    """Return whether profiles are not in the fleet's own Redis, so that agents and workers read a copy."""
    return settings.registry_url not in {None, settings.redis_url}


class ProfileCopy:
    """The copy of the registry's profiles in Redis, of one process.

    Raises `FleetUnavailable` when Redis or the registry does not answer; the next renewal repairs it.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis, self._settings, self._names = redis, settings, profile_names(settings.keys)

    @property
    def is_needed(self) -> bool:
        """Whether there is periodic work: copying, or signing again with the new key."""
        return is_elsewhere(self._settings) or bool(self._settings.signing_keys_old)

    async def renew(self) -> None:
        """Bring the copy up to date with the registry, also after Redis lost it.

        A registry that never had a change is skipped.
        """
        for _ in range(_TRIES if is_elsewhere(self._settings) else 0):
            # Before the registry is read: what changes meanwhile is written by others.
            revision, count = await self._there()
            found = await self._asked(StoredProfiles.texts)
            assert found is not None
            if found.revision == NOTHING_KEPT or (found.revision, len(found.entries)) == (revision, count):
                return
            if await self._write(revision, found):
                return

    async def sign_again(self) -> None:
        """Have profiles signed with the fleet's key that were signed with an old one of it."""
        if self._settings.signing_keys_old:
            await self._asked(StoredProfiles.sign_again)

    async def _there(self) -> tuple[str, int]:
        async with answering(self._redis, seconds=_PATIENCE_SECONDS), self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._names.revision)
            pipe.hlen(self._names.entries)
            revision, count = await pipe.execute()
        return revision.decode(errors="replace") if isinstance(revision, bytes) else revision or "", count

    async def _write(self, expected: str, found: Documents) -> bool:
        command = copying(self._names, found, expected=expected)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return bool(await cast("Awaitable[int]", self._redis.execute_command(*command)))

    async def _asked(self, question: Callable[[StoredProfiles], T]) -> T:
        """Ask the store in a thread: it is synchronous, and limits the time of each answer itself."""

        def ask() -> T:
            with contextlib.closing(StoredProfiles.of(self._settings)) as profiles:
                return question(profiles)

        return await asyncio.to_thread(ask)
