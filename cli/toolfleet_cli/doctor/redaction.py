"""Leaves people's data and secrets out of what goes into a bundle.

Of log lines only what is known to be harmless is kept: time, level, the name of the event, and fields of a short list.
"""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from toolfleet_cli.console.output import plain, shown_url

HIDDEN = "(hidden)"

_KEPT = frozenset(
    {
        "attempt",
        "calls",
        "command",
        "count",
        "delay",
        "failed",
        "failures",
        "health",
        "is_unreached",
        "lane",
        "level",
        "mode",
    }
    | {
        "modules",
        "module",
        "queue",
        "release",
        "seconds",
        "so_far",
        "state",
        "status",
        "timestamp",
        "version",
        "workers",
    }
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


class Redaction:
    """Replaces these secrets wherever they stand, and in URLs who connects, with the password."""

    def __init__(self, secrets: Collection[str]) -> None:
        found = sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, found))) if found else None

    def text(self, text: str) -> str:
        """The text without them."""
        known = text if self._secrets is None else self._secrets.sub(HIDDEN, text)
        return _USER_INFO.sub(f"{HIDDEN}@", shown_url(known))

    def value(self, value: Any) -> Any:
        """JSON, with the texts in it so treated; its keys, too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def log(self, lines: Iterable[str]) -> str:
        """What may be kept of a log; how many lines were left out stands at its end."""
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
