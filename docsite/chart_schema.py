"""Writes into the schema of the chart's values which settings there are, and which of them only a Secret may have."""

import json
from pathlib import Path
from typing import Any, Final

from toolfleet_cli.console import SECRETS
from toolfleet_registry.config.setting_sources import REMOVED
from toolfleet_registry.settings import PREFIX, Settings

CHART: Final = Path(__file__).parents[1] / "ops" / "chart"

_URLS: Final = frozenset({"broker_url", "registry_url", "core_url"})
"""They may have a password, or a token in their path."""
_OF_THE_CHART: Final = frozenset(
    {
        "drain_seconds",
        "gateway_hosts",
        "gateway_port",
        "lane",
        "metrics_address",
        "metrics_port",
        "metrics_ports",
        "probe_address",
        "probe_port",
        "redis_url",
        "scale_from_zero_lanes",
        "worker_concurrency",
    }
)
"""What templates set by other values."""
_OF_ONE_MACHINE: Final = frozenset({"gateway_key", "hosts", "up_gateway"})


def chart_schema() -> str:
    """Return the schema with the names of today's settings."""
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    secret = (SECRETS | _URLS) - _OF_ONE_MACHINE
    # One that is gone is told of where the release's processes start: an upgrade of the release is not refused for it.
    plain = Settings.model_fields.keys() | REMOVED.keys()
    plain -= secret | SECRETS | _OF_THE_CHART | _OF_ONE_MACHINE
    schema["$defs"]["settingName"]["enum"] = _variables(plain)
    schema["$defs"]["secretSettingName"]["enum"] = _variables(secret)
    return json.dumps(schema, indent=2) + "\n"


def _variables(names: frozenset[str] | set[str]) -> list[str]:
    return sorted(PREFIX + name.upper() for name in names)
