"""Says of each text on standard input whether whichever version is on the path reads it: `[[class, text], …]` as JSON."""

import importlib
import json
import sys

from toolfleet_registry.contracts import Message

_MODULES = ("toolfleet_registry.jobs", "toolfleet_tasks.job_ends", "toolfleet_tasks.job_rules")
"""Where the first version has the messages of jobs; its calls are in `contracts`."""


def reads(name: str, text: str) -> bool:
    """Whether its class of that name takes the text."""
    found = {kind.__name__: kind for kind in Message.__subclasses__()}
    try:
        found[name].model_validate_json(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    for each in _MODULES:
        importlib.import_module(each)
    json.dump([reads(name, text) for name, text in json.load(sys.stdin)], sys.stdout)
