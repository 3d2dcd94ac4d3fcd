"""Says on how many examples a property is tried: a few in each run of the suite, all in `make explore`."""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
"""`repeatable`, where a run has the examples of the one before, or `exploring`."""

_PART = 4 if PROFILE == "repeatable" else 1


def examples(whole: int) -> int:
    """So many of `whole`, to which a property is tried when there is time."""
    return max(whole // _PART, 1)
