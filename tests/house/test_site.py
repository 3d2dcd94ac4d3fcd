"""The site of docs/: what is generated is current, every link leads somewhere, and nothing comes from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docsite.pages import DOCS, generated

from support.documents import ROOT

BUILD_SECONDS = 600
# What a browser fetches by itself, in contrast to a link that a reader may click on.
_ASSET = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


@pytest.mark.parametrize("name", list(generated()))
def test_a_generated_page_is_current(name: str) -> None:
    """`make pages` writes them anew."""
    assert (DOCS / name).read_text() == generated()[name], f"docs/{name} is not current: run `make pages`"


def test_every_page_is_in_the_navigation() -> None:
    """But for decisions, whose index names them."""
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python/name:", "")
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}

    assert named - pages == set()
    assert {page for page in pages - named if not page.startswith("decisions/")} == set()


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS)
def test_the_site_is_built_and_needs_no_network() -> None:
    """In its strict mode, in which a dead link or anchor is an error; no page loads anything from elsewhere."""
    built = subprocess.run(
        [str(Path(sys.executable).with_name("zensical")), "build", "--strict"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr

    pages = list((ROOT / "site").rglob("*.html"))
    assert len(pages) > 30
    assert {asset for page in pages for asset in _ASSET.findall(page.read_text())} == set()
    assert sum('class="drawing"' in page.read_text() for page in pages) >= 2
