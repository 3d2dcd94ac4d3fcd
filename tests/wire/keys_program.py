"""Prints the patterns of all Redis keys of whichever version is on the path, as JSON."""

import json

try:
    from toolfleet_registry.key_rules import RULES
except ImportError:  # as the first version has it
    from toolfleet_registry.keys import RULES  # type: ignore[attr-defined, no-redef] # in that version it is there

if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(rule.pattern.pattern) for rule in RULES) + "\n]")  # noqa: T201
