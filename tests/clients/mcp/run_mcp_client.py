"""Runs one real MCP client against a gateway, with a model that follows a script: `run_mcp_client.py CLIENT URL KEY ACT [CALLS]` prints JSON.

Acts: `call` calls `owls.echo`, then `owls.nap` for two seconds; `talk` calls
`owls.talk`, and prints each message of progress; `leave` calls `owls.nap` for a minute until it is interrupted; `cancel` takes such a
call back at a line on standard input, and calls `owls.echo`; `twice` calls `owls.echo`, waits for a line, and calls it again in the same
session; `each` makes the CALLS, names and arguments as JSON.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping

from support.gateways.framework_clients import CLIENTS, ConnectedClient

Act = Callable[[ConnectedClient], Awaitable[list[str]]]


async def call(client: ConnectedClient) -> list[str]:
    return [await client.call("owls.echo", {"text": "hoo"}), await client.call("owls.nap", {"seconds": 2})]


async def talk(client: ConnectedClient) -> list[str]:
    talking = asyncio.create_task(client.call("owls.talk", {}))
    for _ in range(2):
        _say(await client.heard.get())
    return [await talking]


async def leave(client: ConnectedClient) -> list[str]:
    return [await client.call("owls.nap", {"seconds": 60})]


async def cancel(client: ConnectedClient) -> list[str]:
    napping = asyncio.create_task(client.call("owls.nap", {"seconds": 60}))
    await _read_line()
    napping.cancel()
    await asyncio.wait({napping})
    return [await client.call("owls.echo", {"text": "hoo"})]


async def twice(client: ConnectedClient) -> list[str]:
    first = await client.call("owls.echo", {"text": "hoo"})
    _say("called")
    await _read_line()
    return [first, await client.call("owls.echo", {"text": "hoo again"})]


async def each(client: ConnectedClient) -> list[str]:
    return [await client.call(name, arguments) for name, arguments in json.loads(sys.argv[5])]


ACTS: Mapping[str, Act] = {act.__name__: act for act in (call, talk, leave, cancel, twice, each)}


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - for the test


async def _read_line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def main(name: str, url: str, key: str, act: str) -> None:
    async with CLIENTS[name](url, key) as client:
        said = await ACTS[act](client)
    _say(json.dumps({"names": client.names, "said": said}))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:5]))
