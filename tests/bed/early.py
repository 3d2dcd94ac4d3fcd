"""Decides whether this process of pytest runs in virtual time: it does if it was asked for `tests/virtual`, and for nothing else."""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
VIRTUAL = TESTS / "virtual"
_VARIABLE = "TESTS_IN_VIRTUAL_TIME"  # for the processes that pytest-xdist starts

_words = [Path(word.split("::")[0]).resolve() for word in sys.argv[1:]]
_asked = [path for path in _words if path.exists() and path.is_relative_to(TESTS)]
if _asked and all(path.is_relative_to(VIRTUAL) for path in _asked):
    os.environ[_VARIABLE] = "1"

is_virtual = _VARIABLE in os.environ
is_mixed = not is_virtual and any(path.is_relative_to(VIRTUAL) for path in _asked)
if is_virtual:
    import bed.replaced  # noqa: F401 - before anything of the product
