"""The site of docs/: what is generated is current, every link leads somewhere, and nothing comes from elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.documents import ROOT

pytest.importorskip("griffe", reason="what makes the site is not installed: `make install`")

from docsite.module_contract import module_contract
from docsite.pages import DOCS, generated

BUILD_SECONDS = 600
# What a browser fetches by itself, in contrast to a link that a reader may click on.
_ASSET = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


@pytest.mark.timeout(BUILD_SECONDS)
def test_the_generated_pages_are_current() -> None:
    """`make docs` writes them anew: settings, commands, error codes, the contract, the map, the tutorial, the face."""
    pages = generated()

    assert [name for name, text in pages.items() if (DOCS / name).read_text() != text] == [], "run `make docs`"


def test_the_module_contract_is_an_openapi_document() -> None:
    validator = pytest.importorskip("openapi_spec_validator")

    validator.validate(json.loads(module_contract()))


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python/name:", "")
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}

    assert named - pages == set()
    assert pages - named == set()


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
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr

    pages = list((ROOT / "site").rglob("*.html"))
    assert len(pages) > 30
    assert {asset for page in pages for asset in _ASSET.findall(page.read_text())} == set()
    assert sum(page.read_text().count('class="drawing"') for page in pages) >= 3
