"""The page about programs: its program runs as it stands there."""

from pathlib import Path
from typing import Any

from bed.fleet import Bed
from support.documents import programs
from support.fleet import SIGNING_KEY
from support.frameworks.written_program import import_program
from support.module_server import ModuleServer, Request


async def test_the_pages_program_runs(bed: Bed, tmp_path: Path) -> None:
    """It lists what there is, feeds those that are hungry, each once, and returns two numbers."""
    nest, meals = ModuleServer("nest"), {"ada": 2, "bob": 0, "eve": 1}

    async def list_owls(request: Request) -> dict[str, Any]:
        return {"success": True, "result": [{"name": name, "meals": count} for name, count in meals.items()]}

    async def feed(request: Request) -> dict[str, Any]:
        return {"success": True, "result": request["arguments"]["owl"]}

    nest.add("list", list_owls, effect="read", parameters=[{"name": "limit", "type": "integer", "description": ""}])
    nest.add("feed", feed, effect="once", parameters=[{"name": "owl", "type": "string", "description": ""}])
    bed.given |= {"programs": True, "signing_key": SIGNING_KEY}
    await bed.serve(nest)
    await bed.worker()
    await bed.beat()
    program = import_program(programs("docs/guides/programs.md")["feed-the-hungry"], tmp_path)

    assert await program.feed_the_hungry(await bed.agent()) == {"owls": 3, "fed": 2}
    assert sorted(call["arguments"]["owl"] for call in nest.calls("feed")) == ["bob", "eve"]
