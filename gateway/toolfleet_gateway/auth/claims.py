"""Reads a token's claims as who has sent it. What it may do it may because a claim says so: a claim that is not understood gives nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.refusals import AuthRefused
from toolfleet_registry.access.api_key import LEAST_RATE, MOST_LIMIT, MOST_MODULES
from toolfleet_registry.access.roles import ROLES, Role
from toolfleet_registry.config.gateway_settings import ClaimUse
from toolfleet_registry.contracts import Caller, Level
from toolfleet_registry.policy.identities import LONGEST

_LEVELS: tuple[Level, ...] = get_args(Level)  # the lowest first


def identity_of(claims: Mapping[str, Any], names: Mapping[ClaimUse, str], *, expires_at: float) -> Identity:
    """Who has sent a token with these claims, which are verified. Raises `AuthRefused` if they do not say in whose name it is."""
    found = {use: claim_of(claims, name) for use, name in names.items()}
    user_id = _text(found["user_id"], names["user_id"])
    if user_id is None:
        raise AuthRefused("invalid-token", f"The token has no claim {names['user_id']!r}.")
    caller = Caller(
        user_id=user_id,
        permission=_level(found["permission"]),
        allowed_modules=_modules(found["modules"], names["modules"]),
        agent=_text(found["agent"], names["agent"]),
    )
    return Identity(
        caller=caller,
        role=_role(found["role"]),
        subject=user_id,
        conversation_id=_text(found["conversation_id"], names["conversation_id"]),
        expires_at=expires_at,
        acts_for_others=found["acts_for_others"] is True,
        requests_per_second=_limit(found["requests_per_second"], names["requests_per_second"]),
        streams=_whole_limit(found["streams"], names["streams"]),
    )


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of that name; if there is none, what its dots lead to; `None` if there is nothing."""
    if name in claims:
        return claims[name]
    at: Any = claims
    for part in name.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def words_of(value: Any) -> list[str]:
    """The words of a claim: a list of texts, or one text with spaces or commas between them. Others have none."""
    if isinstance(value, str):
        return value.replace(",", " ").split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, Sequence) else []


def _text(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isprintable():
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a text of 1 to {LONGEST} characters.")
    return value


def _limit(value: Any, name: str, least: float = LEAST_RATE) -> float | None:
    """A limit that is not understood refuses the token: without it, it would have none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MOST_LIMIT:
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a number, as a key's limit.")
    return float(value)


def _whole_limit(value: Any, name: str) -> int | None:
    limit = _limit(value, name, least=0)
    if limit is not None and not limit.is_integer():
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a whole number.")
    return None if limit is None else int(limit)


def _level(value: Any) -> Level:
    """The highest of those that are named, and a guest without any."""
    words = words_of(value)
    named: list[Level] = [level for level in _LEVELS if words.count(level)]
    return named[-1] if named else "guest"


def _role(value: Any) -> Role:
    words = words_of(value)
    named: list[Role] = [role for role in ROLES if words.count(role)]
    return named[-1] if named else "none"


def _modules(value: Any, name: str) -> frozenset[str] | Literal["*"] | None:
    """Those that are named; `None`, which means all that the permission allows, only where the claim is not there."""
    if value is None:
        return None
    words = words_of(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(words) != len(value):
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be a list of modules' names.")
    if not isinstance(value, str | Sequence) or len(words) > MOST_MODULES:
        raise AuthRefused("invalid-token", f"The token's claim {name!r} must be at most {MOST_MODULES} names, or *.")
    return "*" if "*" in words else frozenset(words)
