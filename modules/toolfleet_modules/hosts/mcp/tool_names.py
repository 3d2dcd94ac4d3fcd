"""Maps the names that a server gives to the names that tools may have here: the same name always to the same one, and no two to one."""

import hashlib
import re

from toolfleet_registry.functions.passed_methods import RESERVED

_LONGEST = 64  # characters of a method; a model sees them, too
_DIGEST = 12  # hex digits
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
_AMBIGUOUS = re.compile(rf"-[0-9a-f]{{{_DIGEST}}}$")  # it could be what another name is mapped to


def method_of(name: str) -> str:
    """The method for a name of any form and length. One that is fit stays as it is.

    Of any other the readable start is kept, and its SHA-256's first 12 digits follow.
    """
    is_fit = _PLAIN.fullmatch(name) and len(name) <= _LONGEST
    if is_fit and name not in RESERVED and not _AMBIGUOUS.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _ILLEGAL.sub("_", name)[: _LONGEST - _DIGEST - 1].strip("_-")
    return f"{readable or 'tool'}-{digest}"
