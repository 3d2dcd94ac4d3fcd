"""Compares two versions: by Semantic Versioning 2.0.0 where both keep to it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semver import Version

_LONGEST_SEMVER = 128  # characters: a longer one is a mistake, and its numbers would take long to read


def version_key(version: str | None) -> tuple[Any, ...]:
    """Return a key that sorts versions: no version first, then semantic ones, then all others as text.

    Build numbers (`1.0.0+7`), of which Semantic Versioning says nothing, are compared as text: no two versions are
    equal.
    """
    if version is None:
        return (0,)
    semantic = _semantic(version)
    return (2, version) if semantic is None else (1, semantic, version)


def compare_versions(one: str | None, other: str | None) -> int:
    """Compare two versions: -1 if the first one is earlier, 0 if they are the same, 1 if it is later."""
    left, right = version_key(one), version_key(other)
    return (left > right) - (left < right)


def is_later(version: str | None, than: str | None) -> bool:
    """Return whether `version` is later than `than`."""
    return compare_versions(version, than) > 0


def ends_rollback(version: str | None, rolled_back_from: str) -> bool:
    """Return whether a tool that was rolled back takes this version: a later one, or any other one if they cannot be compared."""
    if version is not None and _semantic(version) and _semantic(rolled_back_from):
        return is_later(version, rolled_back_from)
    return version != rolled_back_from


def _semantic(version: str) -> "Version | None":
    from semver import Version  # noqa: PLC0415 - an agent and a worker compare no versions

    if len(version) > _LONGEST_SEMVER:
        return None
    try:
        return Version.parse(version)
    except ValueError:
        return None
