"""Whom a call comes from: checked, if the module has the key that `toolfleet modules key <module>` prints."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

_CLOCKS_SECONDS = 10  # how far a worker's and our clock may be apart


class CallerRefused(Exception):
    """The call does not come from the fleet, or is not the one that the fleet's token is for."""


@dataclass(frozen=True, slots=True)
class CallerCheck:
    """Verifies `Toolfleet-Caller`. Fails closed with a key; without one (`""`) everything passes."""

    module: str
    key: str = field(repr=False)

    @classmethod
    def of(cls, module: str) -> "CallerCheck":
        """With the key in `TOOLFLEET_MODULE_KEY`."""
        return cls(module, os.environ.get("TOOLFLEET_MODULE_KEY", ""))

    def check(self, headers: Mapping[str, str], **claims: str) -> None:
        """Raise `CallerRefused` unless the fleet says `claims`: `tool`, `sub` (the user), `jti` (the call's id)."""
        if not self.key:
            return
        import jwt  # noqa: PLC0415 - a module without a key need not have it

        try:
            caller = jwt.decode(
                headers.get("toolfleet-caller", ""),
                self.key,
                algorithms=["HS256"],
                audience=self.module,
                issuer="toolfleet",
                leeway=_CLOCKS_SECONDS,
                options={"require": ["exp", "sub"]},
            )
        except jwt.PyJWTError as exc:
            raise CallerRefused(f"The call's Toolfleet-Caller is not valid: {exc}.") from exc
        if any(caller.get(name) != value for name, value in claims.items()):
            raise CallerRefused("The call's Toolfleet-Caller is that of another call.")
