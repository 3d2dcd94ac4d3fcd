"""Defines the stored entries of an agent's profile: the version in force, which every process reads, and earlier versions."""

from typing import Annotated

from pydantic import Field, ValidationError

from toolfleet_registry.config.agent_profile import AGENT_NAME, MOST_PROFILES, AgentProfile
from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.contracts.message import Message
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.store.documents import DocumentKind, DocumentNames


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

KEPT_VERSIONS = 20
"""Of each agent, with the one in force."""


class ProfileVersion(Message):
    """One version of an agent's profile. A field that this release does not know could narrow it: it counts for nothing here."""

    version: Annotated[int, Field(ge=1)]
    """Its number; each change has the next one, also a removal."""
    at: float
    """When it was stored, in seconds since the epoch."""
    by: str
    """Who has stored it, as the audit names them."""
    profile: AgentProfile | None = None
    """What it says; `None`: with it the profile was removed."""
    rolled_back_from: int | None = None
    """The earlier version that was put again."""


class ProfileEntry(Message):
    """The profile in force, as it is stored: with its name, so that none can be put in another's place."""

    name: Annotated[str, Field(pattern=f"^{AGENT_NAME}$")]
    """Whose it is."""
    version: ProfileVersion
    """What is in force."""


class ProfileHistory(Message):
    """The versions of one agent's profile, as they are stored."""

    name: Annotated[str, Field(pattern=f"^{AGENT_NAME}$")]
    """Whose they are."""
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
    """The version in force that a text is, or why it counts for nothing, in a few words that quote none of it."""
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
