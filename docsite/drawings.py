"""Draws Mermaid blocks as SVG while the site is built: a page then needs no script, and no network."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import mermaidx
from pymdownx.superfences import SuperFencesException

_ID = "my-svg"  # what the drawing program calls each picture, and what all of a picture's ids contain
_ARTIST = ThreadPoolExecutor(1)  # pages are rendered in several threads; the drawing program knows one


def draw(source: str, _language: str, _css_class: str, _options: object, _md: object, **_attributes: object) -> str:
    """Return a Mermaid block as a picture; a block that cannot be drawn ends the build."""
    try:
        svg = _ARTIST.submit(lambda: mermaidx.render(source).svg()).result()
    except Exception as exc:
        # Of any other exception the extension would make a block of code, without a word.
        raise SuperFencesException(f"This cannot be drawn: {exc}\n{source}") from exc
    own = f"drawing-{hashlib.sha256(source.encode()).hexdigest()[:12]}"  # two drawings of a page share no ids
    svg = svg.replace("background-color: transparent", "background-color: white", 1)  # its lines and words are dark
    return f'<figure class="drawing">{svg.replace(_ID, own)}</figure>'
