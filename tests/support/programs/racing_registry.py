"""A program that changes a registry at the same time as others do; run by tests/integration/registry/store/test_races.py.

`python racing_registry.py <url> <key prefix> <its number>`. Says `ready`; then, for each name of a tool that it reads,
a line: whether it was the one who registered it. A name after `back ` is that of a tool that it gives a version of its own, and
rolls back to the version 0.0.0.
"""

import sys

from toolfleet.stores import RedisToolRegistry, SQLToolRegistry, ToolRegistry, ToolSpec
from toolfleet_registry.redis.keys import Keys


def main(url: str, key_prefix: str, number: str) -> None:
    registry: ToolRegistry = (
        RedisToolRegistry(url, Keys(key_prefix)) if url.startswith("redis") else SQLToolRegistry(url)
    )
    say("ready")
    for line in sys.stdin:
        name = line.strip()
        if name.startswith("back "):
            tool = name.removeprefix("back ")
            mine = ToolSpec(tool_name=tool, version=f"{number}.0.1", input_schema={"by": number}, output_schema={})
            registry.register(mine)
            registry.rollback(tool, "0.0.0")
            say("back")
            continue
        spec = ToolSpec(tool_name=name, version="1.0.0", input_schema={"by": number}, output_schema={})
        try:
            registry.register(spec)
        except ValueError:
            said = "lost"
        else:
            said = "won"
        registry.pin(number, {})
        registry.approve(number, name, "digest")
        say(said)
    registry.close()


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
