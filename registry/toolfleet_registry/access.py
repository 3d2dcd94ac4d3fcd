"""Defines API keys: what their holders may do, their text, and who may create which.

A role says nothing of the tools that its holder may call, and the permission to call tools gives no role.

Secret scanners find a key by its prefix and its length, and verify it by the checksum. Only its SHA-256 is stored, without
a salt and without a slow hash: these protect passwords that can be guessed, and 256 random bits cannot.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, field_validator

from toolfleet_registry.config.agent_profile import AGENT_NAME
from toolfleet_registry.contracts import Caller, Level
from toolfleet_registry.contracts.message import Message
from toolfleet_registry.contracts.names import is_module_name
from toolfleet_registry.permissions import Permission, level_of_caller
from toolfleet_registry.policy.call_faults import LONGEST

Role = Literal["none", "viewer", "operator", "admin"]
"""The right of a user over the fleet itself: nothing; see its state; change tools, calls and modules; and create API keys as well."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""All of them, the lowest first."""

BEGIN = "tfk_"
"""The prefix of every key."""

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_CHARACTERS = 12
_SECRET_CHARACTERS = 43  # of 62 each: 256 bits
_CHECKSUM_CHARACTERS = 6  # for 32 bits
_ID = re.compile(rf"[0-9A-Za-z]{{{_ID_CHARACTERS}}}")
_TEXT = re.compile(
    rf"({BEGIN}([0-9A-Za-z]{{{_ID_CHARACTERS}}})_[0-9A-Za-z]{{{_SECRET_CHARACTERS}}})([0-9A-Za-z]{{{_CHECKSUM_CHARACTERS}}})"
)

MOST_MODULES = 1000
"""Names of modules in a key; a key for more of them is one for all."""

MOST_LIMIT = 1_000_000
LEAST_RATE = 0.001  # one in a quarter of an hour
_LONGEST_DESCRIPTION = 200


def has_role(role: Role, needed: Role) -> bool:
    """Return whether a role includes what another one may do."""
    return ROLES.index(role) >= ROLES.index(needed)


@dataclass(frozen=True, slots=True)
class KeyText:
    """The full text of a key, which is shown once, and its public id."""

    id: str
    text: str = field(repr=False)

    @property
    def digest(self) -> str:
        """The digest that is stored instead of the key: 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def has_digest(self, stored: str) -> bool:
        """Return whether the stored digest is this key's, comparing in constant time."""
        return hmac.compare_digest(self.digest, stored)


def new_key_text() -> KeyText:
    """Make a new random key."""
    key_id, secret = _random(_ID_CHARACTERS), _random(_SECRET_CHARACTERS)
    body = f"{BEGIN}{key_id}_{secret}"
    return KeyText(key_id, body + _checksum(body))


def read_key_text(text: str) -> KeyText | None:
    """Parse the text of a key. Returns `None` if it is none: mistyped, or cut short."""
    match = _TEXT.fullmatch(text)
    if match is None or _checksum(match[1]) != match[3]:
        return None
    return KeyText(match[2], text)


def shown_id(text: str) -> str:
    """Return a key's id in a form that is safe to log: the id of a whole key, or `?` for a text that is no id."""
    read = read_key_text(text)
    if read is not None:
        return read.id
    return text if _ID.fullmatch(text) else "?"


def _random(count: int) -> str:
    return "".join(secrets.choice(_DIGITS) for _ in range(count))


def _checksum(body: str) -> str:
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_CHARACTERS):
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


UserName = Annotated[str, Field(max_length=LONGEST, json_schema_extra={"minLength": 1})]
"""A user's id as requests name it; who reads it says what is wrong with an empty one."""

AgentNames = Annotated[str, Field(pattern=f"^{AGENT_NAME}(/{AGENT_NAME})*$", max_length=LONGEST)]
"""An agent as requests name it, after the agents that it works for: `primary/subagent`."""


class KeyDraft(Message):
    """The rights and the description of a key that is to be created."""

    user_id: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    """The user in whose name it calls."""
    permission: Level = "guest"
    """The tools that it may call: those that ask for this level, or a lower one."""
    allowed_modules: frozenset[str] | Literal["*"] | None = None
    """The modules that it reaches, as `Caller.allowed_modules` has it."""
    agent: AgentNames | None = None
    """The agent whose profile narrows that, as in `Caller.agent`; `None`: the one that a request names, or none."""
    role: Role = "none"
    """Its role as an operator."""
    expires_at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """When it expires, in seconds since the epoch; `None`: never."""
    acts_for_others: bool = False
    """Whether it may call in the name of other users."""
    requests_per_second: Annotated[float, Field(ge=LEAST_RATE, le=MOST_LIMIT, allow_inf_nan=False)] | None = None
    """How many requests it may send in a second, over all gateways; `None`: as many as these take."""
    streams: Annotated[int, Field(ge=0, le=MOST_LIMIT)] | None = None
    """How many event streams it may have open at once, over all gateways; `None`: half of what each of these takes."""
    description: Annotated[str, Field(max_length=_LONGEST_DESCRIPTION)] = ""
    """Its purpose, in words."""

    @field_validator("user_id", "description")
    @classmethod
    def _check_printable(cls, text: str) -> str:
        if not text.isprintable():
            raise ValueError("must have printable characters only")
        return text

    @field_validator("allowed_modules")
    @classmethod
    def _check_modules(cls, modules: frozenset[str] | Literal["*"] | None) -> frozenset[str] | Literal["*"] | None:
        if isinstance(modules, frozenset):
            if "*" in modules:
                return "*"
            if len(modules) > MOST_MODULES:
                raise ValueError(f"must be at most {MOST_MODULES} modules, or *")
            if wrong := sorted(name for name in modules if not is_module_name(name)):
                raise ValueError(f"{wrong[0][:80]!r} is no name of a module")
        return modules


class ApiKey(KeyDraft):
    """A key that was created. Its text is not stored: only its holder has it."""

    id: str
    """Its public id, which is part of its text and no secret."""
    created_at: float
    """When it was created, in seconds since the epoch."""
    created_by: str
    """The creator: `key <id>`, `token <subject>`, or `command line`."""

    @property
    def caller(self) -> Caller:
        """The caller that this key stands for."""
        return Caller(
            user_id=self.user_id,
            permission=self.permission,
            allowed_modules=self.allowed_modules,
            agent=self.agent,
        )

    def is_expired(self, now: float) -> bool:
        """Return whether the key has expired at `now` (the fleet's time)."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True)
class KeyMaker:
    """The creator of a key, and the rights that can be handed on.

    The fields are those of `KeyDraft`; `name` becomes `ApiKey.created_by`.
    """

    name: str
    user_id: str | None
    permission: Level
    allowed_modules: frozenset[str] | Literal["*"] | None
    role: Role
    agent: str | None = None
    expires_at: float | None = None
    acts_for_others: bool = False
    requests_per_second: float | None = None
    streams: int | None = None


COMMAND_LINE = KeyMaker("command line", None, "owner", "*", "admin", acts_for_others=True)
"""The maker of keys that the command line creates. It can write to the store itself, so it may create any key."""


def refusal_of(draft: KeyDraft, maker: KeyMaker) -> str | None:
    """Return the reason why `maker` may not create such a key, as a sentence, or `None` if it may."""
    if not has_role(maker.role, "admin"):
        return f"API keys are made by admins; {maker.name} has the role {maker.role!r}."
    if not has_role(maker.role, draft.role):
        return f"role must be at most {maker.role!r}, as {maker.name} has it."
    if level_of_caller(draft.permission) > level_of_caller(maker.permission):
        return f"permission must be at most {maker.permission!r}, as {maker.name} has it."
    if not _reaches_all_of(maker, draft):
        return f"allowed_modules must be among those that {maker.name} reaches."
    if maker.agent is not None and draft.agent != maker.agent:
        return f"agent must be {maker.agent!r}, as {maker.name} has it."
    return _refusal_of_names(draft, maker) or _refusal_of_bounds(draft, maker)


def _refusal_of_names(draft: KeyDraft, maker: KeyMaker) -> str | None:
    if maker.acts_for_others:
        return None
    if draft.user_id != maker.user_id:
        return f"user_id must be {maker.user_id!r}: {maker.name} does not act for others."
    return f"acts_for_others must be false: {maker.name} does not act for others." if draft.acts_for_others else None


def _refusal_of_bounds(draft: KeyDraft, maker: KeyMaker) -> str | None:
    for name in ("expires_at", "requests_per_second", "streams"):
        has: float | None = getattr(maker, name)
        wanted: float | None = getattr(draft, name)
        if has is not None and (wanted is None or wanted > has):
            return f"{name} must be given, and be at most {has:.15g}, as {maker.name} has it."
    return None


def _reaches_all_of(maker: KeyMaker, draft: KeyDraft) -> bool:
    """Return whether `maker` reaches everything that the key would.

    A guest's default modules are a setting and may change, so only a guest can pass them on.
    """
    modules, wanted = maker.allowed_modules, draft.allowed_modules
    if modules == "*" or (modules is None and level_of_caller(maker.permission) > Permission.GUEST):
        return True
    if modules is None:
        return wanted is None or wanted == frozenset()
    return isinstance(wanted, frozenset) and wanted <= modules
