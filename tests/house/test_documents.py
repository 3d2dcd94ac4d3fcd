"""The documents keep their rules: their programs have names and are run, and their lines are short."""

import re
from collections.abc import Iterator
from pathlib import Path

from support.documents import ROOT, pages, programs
from toolfleet_registry.config.setting_sources import misspelt, removed
from toolfleet_registry.settings import Settings

MAX_LINE = 120
# A changelog's lines are wrapped when a version is released: until then every change adds to them.
NOT_WRAPPED = {ROOT / "CHANGELOG.md"}
MAX_README_LINES = 150
_SETTING = re.compile(r"TOOLFLEET_[A-Z][A-Z0-9_]*[A-Z0-9]")
_CITED = re.compile(r"`benchmarks/results/(\w+\.md)`")
_FIGURE = re.compile(r"\b(\d[\d,]*(?:\.\d+)?)(?= calls a second| ms\b| MB\b| s\b)")
_RATE = re.compile(r"(?<!some )\b(\d{1,3}(?:,\d{3})+)(?= calls a second)")
_BLOCK = re.compile(r"(?P<name><!-- program: [a-z-]+ -->\n)?^```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_program_has_a_name() -> None:
    """A test finds a program by its name. The README may repeat one of the pages."""
    named = {text for page in pages() for text in programs(page).values()}
    blocks = [(page, block) for page in pages() for block in _BLOCK.finditer((ROOT / page).read_text())]

    assert len(named) > 10
    assert [(page, block["text"]) for page, block in blocks if not block["name"] and block["text"] not in named] == []


def test_every_program_is_run() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert [
        name for page in pages() for name in programs(page) if f'("{name}")' not in tests and f'["{name}"]' not in tests
    ] == []


def test_every_setting_that_a_page_names_is_one() -> None:
    """A variable that begins as settings do is a setting, or was one, or a host's own key."""
    named = {name for page in pages() for name in _SETTING.findall((ROOT / page).read_text())}

    assert "TOOLFLEET_REDIS_URL" in named
    assert misspelt(Settings.model_fields, dict.fromkeys(named, "")).keys() <= {"TOOLFLEET_ANNOUNCE_KEY"}
    assert removed(dict.fromkeys(named, "")).keys() <= {"TOOLFLEET_FAST_TRANSPORT"}  # how to move is told


def test_figures_are_those_of_the_last_run() -> None:
    """A paragraph that names a report of the benchmark quotes what that says; so does each exact number of calls a second."""
    reports = {path.name: path.read_text() for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    paragraphs = [part for page in pages() for part in re.split(r"\n\n|\n- ", (ROOT / page).read_text())]
    cited = [(part, [reports[name] for name in _CITED.findall(part)]) for part in paragraphs if _CITED.search(part)]
    rates = {rate for part in paragraphs for rate in _RATE.findall(part)}

    assert len(cited) > 5
    assert [
        (figure, part)
        for part, sources in cited
        for figure in _FIGURE.findall(part)
        if not any(re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d,])", source) for source in sources)
    ] == []
    assert "3,662" in rates
    assert [rate for rate in sorted(rates) if not any(f" {rate} " in report for report in reports.values())] == []


def test_lines_are_short() -> None:
    """A line of text has at most 120 characters; tables and what a program prints may be wider."""
    assert [fault for path in _markdown() if path not in NOT_WRAPPED for fault in _long_lines(path)] == []


def test_the_readme_is_short() -> None:
    """It says what this is and shows it; everything else stands in the pages that it links to."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def _markdown() -> list[Path]:
    """All of them that people write. Folders with a dot are not entered: `.venv` has more files than all others."""
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(".")]
    found = [path for top in tops for path in (top.rglob("*.md") if top.is_dir() else [top]) if path.suffix == ".md"]
    written = [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    results = ROOT / "benchmarks" / "results"  # as the benchmark writes them
    return sorted(path for path in written if not path.is_relative_to(results))


def _long_lines(path: Path) -> Iterator[str]:
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif len(line) > MAX_LINE and not is_code and not line.startswith("|"):
            yield f"{path.relative_to(ROOT)}:{number}"
