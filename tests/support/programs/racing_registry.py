"""Processes that change a registry at the same time; run by tests/integration/registry/store/test_races.py.

`python racing_registry.py <url> <key prefix> <how many>`: forks of one process, whose imports are done. Says what all of them say, as
JSON, a line each time: first `ready`; then, for each name of a tool that it reads, whether they were the one who registered it.
A name after `back ` is that of a tool that each gives a version of its own, and rolls back to the version 0.0.0.
"""

import json
import multiprocessing
import sys
from multiprocessing.connection import Connection
from typing import Any

from toolfleet.stores import RedisToolRegistry, SQLToolRegistry, ToolRegistry, ToolSpec
from toolfleet_registry.redis.keys import Keys


def main(url: str, key_prefix: str, processes: str) -> None:
    forks = multiprocessing.get_context("fork")
    racers = list[Any]()
    for number in range(int(processes)):
        ours, theirs = forks.Pipe()
        forks.Process(target=race, args=(url, key_prefix, str(number), theirs), daemon=True).start()
        theirs.close()
        racers.append(ours)
    say([racer.recv() for racer in racers])
    for line in sys.stdin:
        for racer in racers:
            racer.send(line.strip())
        say([racer.recv() for racer in racers])


def race(url: str, key_prefix: str, number: str, orders: "Connection[str, str]") -> None:
    """Do what is ordered, until the process that gives the orders ends."""
    registry: ToolRegistry = (
        RedisToolRegistry(url, Keys(key_prefix)) if url.startswith("redis") else SQLToolRegistry(url)
    )
    orders.send("ready")
    while True:
        name = orders.recv()
        orders.send(
            roll_back(registry, name[5:], number) if name.startswith("back ") else register(registry, name, number)
        )


def roll_back(registry: ToolRegistry, name: str, number: str) -> str:
    mine = ToolSpec(tool_name=name, version=f"{number}.0.1", input_schema={"by": number}, output_schema={})
    registry.register(mine)
    registry.rollback(name, "0.0.0")
    return "back"


def register(registry: ToolRegistry, name: str, number: str) -> str:
    spec = ToolSpec(tool_name=name, version="1.0.0", input_schema={"by": number}, output_schema={})
    try:
        registry.register(spec)
    except ValueError:
        said = "lost"
    else:
        said = "won"
    registry.pin(number, {})
    registry.approve(number, name, "digest")
    return said


def say(words: list[str]) -> None:
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
