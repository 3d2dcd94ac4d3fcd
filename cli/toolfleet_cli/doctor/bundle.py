"""Writes what a bug report needs into a zip: settings, versions, findings, depths, counts and log lines, and no people's data."""

import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toolfleet_cli.console.shown_settings import SECRETS, shown_value
from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.checks.fleet_secrets import secrets_of
from toolfleet_cli.doctor.examination import Examination
from toolfleet_cli.doctor.redaction import Redaction
from toolfleet_cli.doctor.report import as_json
from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.config.setting_sources import origin_of
from toolfleet_registry.settings import Settings

_PACKAGES = (
    "toolfleet",
    "toolfleet-sdk",
    "celery",
    "kombu",
    "redis",
    "pydantic",
    "aiohttp",
    "starlette",
    "mcp",
    "cryptography",
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_LOG_LINES, _LOG_BYTES = 200, 256 * 2**10
# May name people, or what they do: of these only whether they are set.
_PERSONAL = frozenset({"agents", "hosts", "secrets"})


def write_bundle(path: Path, patient: Patient, found: Examination) -> list[str]:
    """Write it, and return the names of its files. Raises `OSError`; another file of that name is replaced."""
    redaction = Redaction(_secrets(patient))
    parts: dict[str, Any] = {
        "versions.json": _versions(),
        "settings.json": _settings(patient),
        "examination.json": as_json(found, with_quotes=False),
    }
    texts = {name: json.dumps(redaction.value(value), indent=2, default=str) for name, value in parts.items()}
    texts |= {f"logs/{name}": redaction.log(lines) for name, lines in _logs(patient.folder)}
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in texts.items():
            bundle.writestr(name, text)
    draft.replace(path)
    return sorted(texts)


def _secrets(patient: Patient) -> list[str]:
    """All that this process knows and that must not be in it."""
    settings = patient.settings
    headers = [value.get_secret_value() for each in settings.module_headers.values() for value in each.values()]
    environ = [value for name, value in patient.environ.items() if _SECRET_NAME.search(name)]
    return [*secrets_of(settings).values(), *headers, *environ, *settings.registry_webhooks]


def _versions() -> Mapping[str, Any]:
    packages = dict[str, str]()
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"python": sys.version, "platform": platform.platform(), "packages": packages}


def _settings(patient: Patient) -> Mapping[str, Any]:
    found = dict[str, Any]()
    for name in sorted(Settings.model_fields):
        source = origin_of(name, start=patient.folder, environ=patient.environ).source
        if name in SECRETS or name in _PERSONAL:
            value = "(hidden)" if getattr(patient.settings, name) else None
        else:
            value = shown_value(patient.settings, name)
        found[name] = {"value": value, "from": source}
    return found


def _logs(folder: Path) -> Iterable[tuple[str, list[str]]]:
    """The last lines of each log of a `toolfleet up` here or in a folder above."""
    candidates = (each / FOLDER / "logs" for each in (folder, *folder.parents))
    logs = next((each for each in candidates if each.is_dir()), None)
    for path in sorted(logs.glob("*.log")) if logs is not None else ():
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _LOG_BYTES))
                yield path.name, log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            continue
