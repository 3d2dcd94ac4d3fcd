"""Digests a specification: two digests are equal if, and only if, nothing that matters differs."""

import hashlib
import json

from toolfleet_registry.manifests.specs import ToolSpec

_PREFIX = "sha256:"
_IN_A_VERSION = 12  # hex digits


def digest_of(spec: ToolSpec) -> str:
    """`sha256:` and 64 hex digits: of the specification as JSON with sorted names, without its version.

    The version is left out, for it is a name that the content is given: a new one alone changes nothing.
    """
    content = spec.model_dump(mode="json", exclude={"version"})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return _PREFIX + hashlib.sha256(text.encode()).hexdigest()


def version_from(digest: str) -> str:
    """The version of a specification that has none of its own: `sha256:` and the first 12 digits of its digest."""
    return digest[: len(_PREFIX) + _IN_A_VERSION]
