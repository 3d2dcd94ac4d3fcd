"""Writes the zip for a bug report: settings, versions, findings, depths, counts and log lines, without personal data."""

import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from toolfleet_cli.console import SECRETS, plain, shown_url, shown_value
from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.examination import Examination, as_json
from toolfleet_cli.doctor.settings import secrets_of
from toolfleet_registry.config.run_file import left_logs
from toolfleet_registry.config.setting_sources import origin_of
from toolfleet_registry.settings import Settings

_PACKAGES = tuple(
    """
    toolfleet toolfleet-sdk celery kombu redis pydantic aiohttp starlette mcp cryptography
    """.split()
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_LOG_LINES, _LOG_BYTES = 200, 256 * 2**10
# May name people, or what they do: of these only whether they are set.
_PERSONAL = frozenset({"agents", "hosts", "secrets"})

HIDDEN = "(hidden)"

_KEPT = frozenset(
    """
    attempt calls command count delay failed failures health is_unreached lane level mode modules module queue
    release seconds so_far state status timestamp version workers
    """.split()
)
_SHORTEST_SECRET = 4  # characters: shorter ones would be found everywhere
_EVENT = re.compile(r"[a-z][a-z0-9_]{2,60}")
_CONSOLE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z?) \[(?P<level>\w+) *\] (?P<event>[a-z][a-z0-9_]+) +\[[\w.]+\](?P<rest>.*)"
)
_FIELD = re.compile(r"""(?:^| )(?P<name>\w+)=(?P<value>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[[^\]]*\]|[^ ]+)""")
_HARMLESS_VALUE = re.compile(r"[\w.:;,\[\]'\" -]{0,200}")  # no address of a person, no URL
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>[\w<>.]+)')
_USER_INFO = re.compile(r"(?<=://)[^/@\s\"']+@")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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
    """Return the secrets that this process knows and that must not be in the bundle."""
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
    """Yield the last lines of each log of a `toolfleet up` here or in a folder above."""
    logs = left_logs(folder)
    for path in sorted(logs.glob("*.log")) if logs is not None else ():
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _LOG_BYTES))
                yield path.name, log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            continue


class Redaction:
    """Replaces the given secrets everywhere, and the user and the password in URLs.

    Of log lines only harmless parts are kept: time, level, the name of the event, and fields of a short list.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        found = sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, found))) if found else None

    def text(self, text: str) -> str:
        """Return the text without the secrets."""
        known = text if self._secrets is None else self._secrets.sub(HIDDEN, text)
        return _USER_INFO.sub(f"{HIDDEN}@", shown_url(known))

    def value(self, value: Any) -> Any:
        """Return JSON without the secrets in its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def log(self, lines: Iterable[str]) -> str:
        """Return the harmless part of a log; the number of dropped lines is at its end."""
        kept, dropped = list[str](), 0
        for line in lines:
            harmless = _harmless(_COLOUR.sub("", line.rstrip("\n")))
            if harmless is None:
                dropped += 1
            else:
                kept.append(self.text(harmless))
        return "\n".join([*kept, f"({dropped} lines left out)", ""])


def _harmless(line: str) -> str | None:
    if line.startswith("{"):
        return _of_json(line)
    if (frame := _FRAME.fullmatch(line)) is not None:
        return plain(f"  File {frame['file'].rpartition('site-packages/')[2]}:{frame['line']} {frame['name']}")
    found = _CONSOLE.fullmatch(line)
    if found is None:
        return None
    fields = {each["name"]: each["value"] for each in _FIELD.finditer(found["rest"])}
    shown = " ".join(f"{name}={value}" for name, value in fields.items() if _is_kept(name, value))
    return plain(f"{found['time']} [{found['level']}] {found['event']} {shown}".rstrip())


def _of_json(line: str) -> str | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or not _EVENT.fullmatch(str(said.get("event", ""))):
        return None
    return json.dumps({name: one for name, one in said.items() if name == "event" or _is_kept(name, json.dumps(one))})


def _is_kept(name: str, value: str) -> bool:
    return name in _KEPT and _HARMLESS_VALUE.fullmatch(value) is not None
