"""Writes settings as environment variables, so that a child process gets exactly ours, wherever we read them from."""

import json

from toolfleet_registry.headers.module_headers import headers_by_module
from toolfleet_registry.settings import PREFIX, Settings


def environment_of(settings: Settings) -> dict[str, str]:
    """`TOOLFLEET_…` variables that `load_settings` reads back as equal settings."""
    values = settings.model_dump(mode="json")
    values["module_headers"] = {name: own.plain() for name, own in headers_by_module(settings.module_headers).items()}
    return {f"{PREFIX}{name.upper()}": _written(value) for name, value in values.items() if value is not None}


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
