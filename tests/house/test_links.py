"""What the documents link to is there, and so are the paths that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "registry/*.md",
        "tasks/*.md",
        "workers/*.md",
        "gateway/*.md",
        "modules/*.md",
        "cli/*.md",
        "examples/*/*.md",
    )
    for path in ROOT.glob(pattern)
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:)([^)\s#]*)(#[^)\s]+)?\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

_PATH = re.compile(r"`((?:registry|modules|tasks|workers|gateway|cli|ops|tests|benchmarks|docs)(?:/[\w/.-]*)?)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(document: Path) -> None:
    """Those within the project, also to a heading of the same page."""
    links = _LINK.findall(_prose(document))
    targets = [(document.parent / path if path else document, anchor.removeprefix("#")) for path, anchor in links]

    assert [str(path) for path, _ in targets if not path.exists()] == []
    assert [f"{path}#{anchor}" for path, anchor in targets if anchor and anchor not in _anchors(path)] == []


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_path_that_is_named_is_there(document: str) -> None:
    """Whoever moves a file reads the recipe that leads to it."""
    named = set(_PATH.findall((ROOT / document).read_text()))

    assert len(named) > 15
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def _prose(document: Path) -> str:
    return _FENCED.sub("", document.read_text())


def _anchors(document: Path) -> set[str]:
    """As forges make them of headings."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
