"""Which version is the later one."""

import random

import pytest

from toolfleet_registry.manifests.versions import compare_versions, ends_rollback, is_later, version_key


def test_versions_are_sorted() -> None:
    """None, then semantic ones as Semantic Versioning sorts them, then all others as text."""
    ordered = [
        None,
        "0.9.0",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.0+build.2",  # builds are equal to Semantic Versioning: by their text
        "1.0.0+build.3",
        "1.2.0",
        "1.10.0",
        "2.0.0",
        "",
        "1.0",
        "1.0.0\n",
        "sha256:0123456789ab",
        "v1.0.0",
        "\u0661.0.0",  # a digit, but not of ours
    ]
    for seed in range(9):
        shuffled = ordered.copy()
        random.Random(seed).shuffle(shuffled)
        assert sorted(shuffled, key=version_key) == ordered


@pytest.mark.parametrize(
    ("version", "than", "later"),
    [
        ("1.10.0", "1.9.0", True),
        ("1.9.0", "1.10.0", False),
        ("1.0.0", "1.0.0", False),
        ("1.0.0", "1.0.0-rc.1", True),
        ("1.0.0", None, True),
        (None, None, False),
        ("latest", "9.9.9", True),  # what is no version as we know them comes last
    ],
)
def test_one_version_is_later_than_another(version: str | None, than: str | None, later: bool) -> None:
    """Or not."""
    assert is_later(version, than) is later


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "01.0.0", "1.0.0-01", "", None, "9" * 5000 + ".0.0", "1.0.0 "])
def test_what_is_no_semantic_version_is_none(version: str | None) -> None:
    """However long it is."""
    assert version_key(version) == ((0,) if version is None else (2, version))


@pytest.mark.parametrize(
    ("one", "other", "order"), [("1.2.0", "1.10.0", -1), ("1.0.0", "1.0.0", 0), ("2.0.0", None, 1), (None, None, 0)]
)
def test_two_versions_are_compared(one: str | None, other: str | None, order: int) -> None:
    """As functions that sort take it."""
    assert compare_versions(one, other) == order
    assert compare_versions(other, one) == -order


@pytest.mark.parametrize(
    ("version", "rolled_back_from", "ends"),
    [
        ("2.0.1", "2.0.0", True),
        ("2.0.0", "2.0.0", False),
        ("1.9.0", "2.0.0", False),
        ("sha256:b", "sha256:a", True),  # which one is later nobody knows
        ("sha256:a", "sha256:a", False),
        ("1.0.0", "sha256:a", True),
        (None, "1.0.0", True),
    ],
)
def test_a_later_version_ends_a_rollback(version: str | None, rolled_back_from: str, ends: bool) -> None:
    """Or any other one, where the two cannot be compared."""
    assert ends_rollback(version, rolled_back_from) is ends
