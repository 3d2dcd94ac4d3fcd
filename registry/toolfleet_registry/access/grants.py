"""Decides who may create which API key: you cannot create a key with more rights than your own."""

from dataclasses import dataclass
from typing import Literal, Self

from toolfleet_registry.access.api_key import ApiKey, KeyDraft
from toolfleet_registry.access.roles import Role, has_role
from toolfleet_registry.contracts import Level
from toolfleet_registry.permissions import Permission, level_of_caller


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

    @classmethod
    def of_key(cls, key: ApiKey) -> Self:
        """Return the maker that a key's holder is."""
        return cls(
            name=f"key {key.id}",
            user_id=key.user_id,
            permission=key.permission,
            allowed_modules=key.allowed_modules,
            role=key.role,
            agent=key.agent,
            expires_at=key.expires_at,
            acts_for_others=key.acts_for_others,
            requests_per_second=key.requests_per_second,
            streams=key.streams,
        )


COMMAND_LINE = KeyMaker("command line", None, "owner", "*", "admin", acts_for_others=True)
"""Whoever reaches the store by the command line: it could write there what it likes, and so may make any key."""


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
