"""Verifies in a module, without the SDK, who calls."""

import os
from collections.abc import Mapping
from typing import Any

import jwt  # pip install pyjwt; there is something like it for every language


def caller_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the verified caller. Raises jwt.PyJWTError for a call that is not the fleet's."""
    return jwt.decode(
        headers["Toolfleet-Caller"],
        os.environ["TOOLFLEET_MODULE_KEY"],
        algorithms=["HS256"],  # never the token's own choice
        audience="owls",
        issuer="toolfleet",
        leeway=10,  # seconds between two machines' clocks
        options={"require": ["exp", "sub", "jti"]},
    )
