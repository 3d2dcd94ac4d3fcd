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
    """The check of `Toolfleet-Caller`, the fleet's signed token about a call. Fails closed; without a key all requests pass.

    Args:
        module: The module's name, for which a token must be made.
        key: The keys, as `keys_in` reads them; empty for no check.

    Raises:
        RuntimeError: There is a key, and PyJWT is not installed.
    """

    module: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.key:
            _jwt()

    def verify(self, headers: Mapping[str, str]) -> Mapping[str, Any]:
        """Verify the token of a request, before the request's body is read.

        Args:
            headers: The request's headers, by names in lower case.

        Returns:
            The token's claims; empty without a key.

        Raises:
            CallerRefused: The fleet has not signed the token, or not for this module, or it has expired.
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
        """Return a verified caller's permission.

        Args:
            caller: The claims that `verify` has returned.
            **claims: What the token must say of the call: `tool`, `sub` (the user), `jti` (the call's id).

        Returns:
            The permission; `None` without a key.

        Raises:
            CallerRefused: The token is that of another call.
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
    """Split the value of `TOOLFLEET_MODULE_KEY` at its commas.

    Returns:
        The keys, the current one first: there are several while the fleet changes its key.
    """
    return [key for part in value.split(",") if (key := part.strip())] or [value]


def _jwt() -> Any:
    try:
        import jwt  # a module without a key need not have it
    except ImportError:
        raise RuntimeError(f"{KEY_VARIABLE} is set, and tokens cannot be checked: pip install toolfleet-sdk.") from None
    return jwt
