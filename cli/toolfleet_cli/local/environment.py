"""Writes settings as environment variables, so that a child process gets exactly ours, wherever we read them from."""

import json
import os

from toolfleet_registry.headers.module_headers import headers_by_module
from toolfleet_registry.settings import PREFIX, Settings

SECRETS = frozenset(
    {
        "signing_key",
        "signing_keys_old",
        "require_signed_results",
        "core_secret",
        "core_url",
        "registry_webhooks",
        "registry_webhooks_secret",
        "approvals",
        "module_headers",
        "gateway_key",
    }
)
"""Settings that sign, let in or wake, and those that are wrong without them: only who needs them has them."""

# In the place of an empty text, which would leave it to a `toolfleet.toml`.
_NONE = {"signing_keys_old": "[]", "require_signed_results": "false"}


def no_secrets() -> dict[str, str]:
    """Variables that take the `SECRETS` from a child, however those of this process write them."""
    names = {f"{PREFIX}{name.upper()}": _NONE.get(name, "") for name in SECRETS}
    return {variable: names[variable.upper()] for variable in {*names, *os.environ} if variable.upper() in names}


def flower_environment(settings: Settings) -> dict[str, str]:
    """All that Flower knows of the fleet: it reads no file."""
    shown = {f"{PREFIX}{name}": "" for name in ("HOSTS", "SECRETS", "REGISTRY_URL")}
    return {**environment_of(settings), **no_secrets(), **shown}


def environment_of(settings: Settings) -> dict[str, str]:
    """`TOOLFLEET_…` variables that `load_settings` reads back as equal settings."""
    values = settings.model_dump(mode="json")
    values["module_headers"] = {name: own.plain() for name, own in headers_by_module(settings.module_headers).items()}
    return {f"{PREFIX}{name.upper()}": _written(value) for name, value in values.items() if value is not None}


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
