"""Writes pages out of Jinja templates, which escape whatever they are given."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader

from toolfleet_gateway.console.rendering import formats
from toolfleet_registry.policy.module_troubles import TONES

FOLDER: Final = Path(__file__).parents[1] / "templates"


class PageTemplates:
    """The templates of a console at `path`. `asset` gives the address of a file below that."""

    def __init__(self, path: str, asset: Callable[[str], str], folder: Path = FOLDER) -> None:
        self.path = path
        self._templates = Environment(
            loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
        )
        self._templates.filters |= {
            "when": formats.when,
            "span": formats.span,
            "millis": formats.millis,
            "pretty": formats.pretty,
            "brief": formats.brief,
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
