"""Shows settings without their secrets."""

import math
from typing import Any

from toolfleet_cli.console.output import shown_url
from toolfleet_registry.settings import Settings

SECRETS = frozenset(
    {
        "signing_key",
        "signing_keys_old",
        "core_secret",
        "gateway_key",
        "registry_webhooks",
        "registry_webhooks_secret",
        "module_headers",
        "approvals",
    }
)
"""Settings that are shown to nobody: of webhooks, the path may be a token. Of other URLs the passwords are not shown."""

_HIDDEN = "(hidden)"


def shown_value(settings: Settings, name: str) -> Any:
    """A setting as JSON: secrets are `(hidden)`, and URLs have no passwords."""
    value: Any = settings.model_dump(mode="json", include={name})[name]
    if value == math.inf:
        return "inf"  # JSON has no such number
    if name in SECRETS:
        return _HIDDEN if value else value
    return _without_passwords(sorted(value) if isinstance(getattr(settings, name), frozenset) else value)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return shown_url(value)
    return {name: _without_passwords(one) for name, one in value.items()} if isinstance(value, dict) else value
