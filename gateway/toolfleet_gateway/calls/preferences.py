"""Reads how long a client waits, by `Prefer` (RFC 7240), and its idempotency key."""

import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from toolfleet_gateway.calls.bodies import LONGEST_KEY
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_gateway.http.routes import HeaderParameter
from toolfleet_registry.config.gateway_settings import GatewaySettings

PREFER = HeaderParameter(
    "Prefer",
    "`wait=N`: answer with the result if there is one within N seconds. `respond-async`: answer at once.",
    most=None,
)
IDEMPOTENCY_KEY_PATTERN = rf"^[\x21-\x7e]([\x20-\x7e]{{0,{LONGEST_KEY - 2}}}[\x21-\x7e])?$"
"""What a key looks like, on whatever route."""
IDEMPOTENCY_KEY = HeaderParameter(
    "Idempotency-Key",
    "Names the intention: a repeat with the same key brings the first call's result.",
    pattern=IDEMPOTENCY_KEY_PATTERN,
)

_WAIT = re.compile(r"wait\s*=\s*\"?(\d{1,6})\"?")
_PRINTABLE = re.compile(IDEMPOTENCY_KEY_PATTERN)


@dataclass(frozen=True, slots=True)
class Preference:
    """The seconds that a client waits for a result, and the preference that was applied."""

    seconds: float
    applied: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the applied preference."""
        return {} if self.applied is None else {"preference-applied": self.applied}


def preference_of(headers: Headers, settings: GatewaySettings, *, usual: float) -> Preference:
    """Parse `Prefer`, within bounds; `usual` seconds without it.

    Unknown preferences are ignored, as RFC 7240 requires.
    """
    preferred = [one.strip().lower() for value in headers.getlist("prefer") for one in value.split(",")]
    waits = next((found for one in preferred if (found := _WAIT.fullmatch(one))), None)
    if waits is not None:
        seconds = min(float(waits[1]), settings.gateway_longest_wait_seconds)
        return Preference(seconds, f"wait={seconds:g}")
    return Preference(0.0, "respond-async") if "respond-async" in preferred else Preference(usual)


def idempotency_key_of(headers: Headers) -> str | None:
    """The key, if there is one. Raises `Problem` (400) for one that is none."""
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not _PRINTABLE.fullmatch(key):
        raise invalid_request(f"Idempotency-Key must be 1 to {LONGEST_KEY} printable ASCII characters.")
    return key
