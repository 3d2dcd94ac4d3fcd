"""The console's own files: which browsers may have, and where those of others come from."""

import hashlib
import json

import pytest
from starlette.requests import Request

from toolfleet_gateway.console.serving.static_files import FOLDER, StaticFiles
from toolfleet_gateway.http.problems import Problem

VENDOR = FOLDER / "vendor"


def asking(query: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "query_string": query.encode(), "headers": []})


def test_what_others_have_written_is_as_they_have_published_it() -> None:
    """Each file has its npm package, licence and digest in `sources.json`, and no other file is there."""
    sources = json.loads((VENDOR / "sources.json").read_text())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["sources.json"]

    assert {name: digest for name, (_, _, digest) in sources.items()} == found
    assert {licence for _, licence, _ in sources.values()} == {"0BSD", "MIT"}


def test_an_address_with_its_digest_is_kept_for_ever() -> None:
    """Any other address of the file is asked for again."""
    files = StaticFiles()
    name, _, query = files.address("console.css").removeprefix("/static/").partition("?")

    assert files.answer(asking(query), name).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert files.answer(asking("v=old"), name).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["", "none.css", "../templates/frame.html", "vendor", "vendor/sources.json", "/etc/passwd"]
)
def test_nothing_else_is_served(name: str) -> None:
    """Whatever the path says: what is not in the list of files is not looked for."""
    with pytest.raises(Problem):
        StaticFiles().answer(asking(), name)
