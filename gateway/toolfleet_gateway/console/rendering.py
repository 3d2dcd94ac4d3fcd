"""Writes pages with Jinja templates, which escape all values, and serves the console's own files."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from toolfleet_gateway.http.problems import not_found
from toolfleet_registry.policy.hints import TONES
from toolfleet_registry.system import fleet_clock

_LONGEST_TEXT: Final = 20_000
"""Characters of a value that a page shows."""

_NONE: Final = "\N{EN DASH}"
"""In the place of what is not there."""

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
_YEARS = 253_402_300_799.0  # what a `datetime` takes

_MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGITS = 12


_TEMPLATES: Final = Path(__file__).parent / "templates"


class PageTemplates:
    """The templates of a console at `path`. `asset` gives the address of a file below that."""

    def __init__(self, path: str, asset: Callable[[str], str], folder: Path = _TEMPLATES) -> None:
        self.path = path
        self._templates = Environment(
            loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
        )
        self._templates.filters |= {
            "when": when,
            "span": _span,
            "millis": _millis,
            "pretty": _pretty,
            "brief": _brief,
            "part": lambda text: quote(str(text), safe=""),
        }
        own: dict[str, Callable[..., str]] = {"at": self.at, "asset": lambda name: path + asset(name)}
        own["tone"] = lambda state: TONES.get(state, "bad")
        self._templates.globals.update(own)

    def write(self, name: str, values: Mapping[str, Any]) -> str:
        """The page, or a part of one."""
        return self._templates.get_template(f"{name}.html").render(values)

    def at(self, below: str, **query: Any) -> str:
        """The address of a page, with what of a query says something."""
        said = {name: value for name, value in query.items() if value not in {None, ""}}
        return f"{self.path}{below}" + (f"?{urlencode(said)}" if said else "")


def when(at: float | None) -> Markup | str:
    """A moment (seconds since the epoch) in UTC, with how far it is from now; a dash if there is none."""
    if not isinstance(at, int | float) or not 0 <= at <= _YEARS:
        return _NONE
    moment = datetime.fromtimestamp(at, UTC)
    away = at - fleet_clock.now()
    is_near = moment.year == datetime.fromtimestamp(fleet_clock.now(), UTC).year
    said = f"in {_span(away)}" if away > 0 else f"{_span(-away)} ago"
    return Markup('<time datetime="{}" title="{} UTC">{} <span class="quiet">{}</span></time>').format(
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S"),
        moment.strftime("%m-%d %H:%M:%S" if is_near else "%Y-%m-%d %H:%M:%S"),
        said,
    )


def _span(seconds: float | None) -> str:
    """A duration in one or two units."""
    if not isinstance(seconds, int | float):
        return _NONE
    if seconds < _MINUTE:
        return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:.0f} ms"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def _millis(value: float | None) -> str:
    """Milliseconds, in seconds where they are many."""
    if not isinstance(value, int | float):
        return _NONE
    return f"{value / 1000:.2f} s" if value >= 1_000 else f"{value:.0f} ms"  # noqa: PLR2004 - a second


def _pretty(value: Any) -> str:
    """A value as JSON over several lines; its beginning, if it is long."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return (
        text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}\n… {len(text) - _LONGEST_TEXT} characters more"
    )


def _brief(value: Any, most: int = 120) -> str:
    """A text in one line, cut where it is long."""
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


STATIC: Final = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class _StaticFile:
    content: bytes
    media: str
    version: str


class StaticFiles:
    """The files of a folder that browsers may have. Other names are not looked up."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in _MEDIA
        }

    def address(self, name: str) -> str:
        """Return the path below the console's, with the digest of the file. Raises `KeyError`."""
        return f"/static/{name}?v={self._files[name].version}"

    def answer(self, request: Request, name: str) -> Response:
        """The file. Raises `Problem`, 404."""
        file = self._files.get(name)
        if file is None:
            raise not_found("There is no such file.")
        is_exact = request.query_params.get("v") == file.version
        kept = "public, max-age=31536000, immutable" if is_exact else "no-cache"
        return Response(file.content, headers={"cache-control": kept}, media_type=file.media)


def _read(path: Path) -> _StaticFile:
    content = path.read_bytes()
    return _StaticFile(content, _MEDIA[path.suffix], hashlib.sha256(content).hexdigest()[:_DIGITS])
