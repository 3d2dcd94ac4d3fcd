"""Every test is run by some target: its tier is known, its tier's target is one of the Makefile, and CI runs that."""

import re
from pathlib import Path

import pytest

from tiers import SHORT, TARGETS, TESTS, TIERS, is_apart, tier_of

ROOT = TESTS.parent
FILES = sorted(TESTS.rglob("test_*.py"))
BY_HAND = {"load"}
"""A machine to themselves is what they need, and hours."""


def test_each_file_of_tests_is_in_a_tier() -> None:
    """Its folder has a line in the table, so nobody's tests are run by nobody."""
    assert FILES
    assert {tier_of(path) for path in FILES} <= set(TARGETS)


def test_what_is_in_no_tier_is_named() -> None:
    """A folder that the table does not know is one clear error."""
    with pytest.raises(LookupError, match=r"owls/test_hoot\.py is in no tier"):
        tier_of(TESTS / "owls" / "test_hoot.py")


def test_each_line_of_the_table_says_something() -> None:
    """Its file or folder is there and has tests, and none has the tier that it would have without its line."""
    inside = {each for path in FILES for each in (path, *path.parents)}

    assert [name for name in TIERS if TESTS / name not in inside] == []
    assert [name for name, tier in TIERS.items() if "/" in name and tier_of((TESTS / name).parent) == tier] == []
    assert list(TIERS) == sorted(TIERS)


@pytest.mark.parametrize("tier", TARGETS)
def test_each_tier_has_a_target(tier: str) -> None:
    """The target chooses by the mark of the tier, and pytest knows the mark."""
    recipe = re.search(rf"^{TARGETS[tier]}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert recipe is not None
    chosen = [words for quoted, word in re.findall(r' -m (?:"([^"]+)"|(\w+)\b)', recipe[1]) for words in (quoted, word)]
    assert tier in " or ".join(chosen).split(" or ")
    assert f'  "{tier}: ' in (ROOT / "pyproject.toml").read_text()


def test_ci_runs_all_tiers() -> None:
    """What a change must pass has the short ones, and hosted CI all but what takes a machine for hours."""
    hosted = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    run = (ROOT / ".ci" / "run").read_text()

    assert [tier for tier in SHORT if f"make {TARGETS[tier]} PYTEST=" not in run] == []
    assert {tier for tier in TARGETS if tier not in SHORT and f"make {TARGETS[tier]}\n" not in hosted} == BY_HAND
    assert "test-all: test " in (ROOT / "Makefile").read_text()  # the short ones with it


def test_marks_of_short_tiers_stand_in_the_tests_themselves() -> None:
    """A file that has none of them is not imported for the other tier, and what it imports marks nothing."""
    shared = [path for path in TESTS.rglob("*.py") if path not in FILES and path.name != "tiers.py"]
    marks = re.compile(rf"mark\.({'|'.join(SHORT)})\b")

    assert [path for path in shared if marks.search(path.read_text())] == []
    assert [path for path in FILES if re.search(rf"(?s)pytestmark = [^\n]*{marks.pattern}", path.read_text())] == []


@pytest.mark.parametrize(
    ("text", "apart"),
    [("def test_owl(): ...", True), ("@pytest.mark.usual\ndef test_owl(): ...", False)],
    ids=["unmarked", "marked"],
)
def test_a_file_is_left_out_only_if_none_of_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, apart: bool
) -> None:
    """One marked test has its whole file read."""
    monkeypatch.setattr("tiers.TESTS", tmp_path)
    file = tmp_path / "fleet" / "test_owl.py"
    file.parent.mkdir()
    file.write_text(text)

    assert is_apart(file, "usual") == apart
    assert not is_apart(file, "fleet")
    assert not is_apart(file, "usual or fleet")
    assert not is_apart(file, "slow")
    assert not is_apart(file, "usual or slow")


@pytest.mark.usual
@pytest.mark.parametrize("tier", ["usual", pytest.param("slow", marks=pytest.mark.slow)])
def test_a_parameter_that_takes_long_is_in_its_tier_alone(request: pytest.FixtureRequest, tier: str) -> None:
    """Its test's own mark does not have it run twice."""
    assert [each for each in TARGETS if request.node.get_closest_marker(each) is not None] == [tier]
