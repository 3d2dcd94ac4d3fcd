"""Verifies the caller of a call, if the module has the key that `toolfleet modules key <module>` prints."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEY_VARIABLE = "TOOLFLEET_MODULE_KEY"
_CLOCKS_SECONDS = 10  # how far a worker's and our clock may be apart
_LEVELS = frozenset({"guest", "user", "admin", "owner"})


class CallerRefused(Exception):
    """The call does not come from the fleet, or is not the one that the fleet's token is for."""


@dataclass(frozen=True, slots=True)
class CallerCheck:
    """Verifies `Toolfleet-Caller`. Fails closed with a key, or several; without one (`""`) everything passes.

    Raises `RuntimeError` if there is a key and nothing to check tokens with.
    """

    module: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.key:
            _jwt()

    def verify(self, headers: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the fleet's claims about a call for this module, before its body is read; empty without a key.

        Raises `CallerRefused` unless the fleet has signed them.
        """
        if not self.key:
            return {}
        jwt, token = _jwt(), headers.get("toolfleet-caller", "")
        first, *others = keys_in(self.key)
        try:
            return self._decoded(jwt, token, first)
        except jwt.PyJWTError as exc:
            for key in others:
                with contextlib.suppress(jwt.PyJWTError):
                    return self._decoded(jwt, token, key)
            raise CallerRefused(f"The call's Toolfleet-Caller is not valid: {exc}.") from exc

    def permission(self, caller: Mapping[str, Any], **claims: str) -> str | None:
        """Return a verified caller's permission, `None` without a key.

        Raises `CallerRefused` unless the token has these `claims`: `tool`, `sub` (the user), `jti` (the call's id).
        """
        if not self.key:
            return None
        if any(caller.get(name) != value for name, value in claims.items()):
            raise CallerRefused("The call's Toolfleet-Caller is that of another call.")
        permission = caller.get("permission")
        return permission if permission in _LEVELS else "guest"

    def _decoded(self, jwt: Any, token: str, key: str) -> Mapping[str, Any]:
        caller: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=["HS256"],
            audience=self.module,
            issuer="toolfleet",
            leeway=_CLOCKS_SECONDS,
            options={"require": ["exp", "sub", "jti"]},
        )
        return caller


def keys_in(value: str) -> list[str]:
    """The keys that a `TOOLFLEET_MODULE_KEY` holds, the fleet's current one first: several while it goes from one to the next."""
    return [key for part in value.split(",") if (key := part.strip())] or [value]


def _jwt() -> Any:
    try:
        import jwt  # noqa: PLC0415 - a module without a key need not have it
    except ImportError:
        raise RuntimeError(f"{KEY_VARIABLE} is set, and tokens cannot be checked: pip install toolfleet-sdk.") from None
    return jwt
