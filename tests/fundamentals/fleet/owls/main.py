"""Offers tools about owls, one for each thing that the tutorial shows."""

import asyncio
from typing import Annotated

from pydantic import Field

from toolfleet.sdk import Context, Image, Module, ModuleBusy, ToolError

module = Module("owls", description="Counts owls.")
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000"
    "01f15c4890000000d49444154789c6364f8cf500f0003860180"
    "5a347d6b0000000049454e44ae426082"
)
adopted: dict[str, list[str]] = {}
nests: dict[str, list[str]] = {}
surveys: dict[str, int] = {}
visitors: set[str] = set()


@module.tool(permission="guest", effect="read")
async def count(wood: str, trees: Annotated[int, Field(ge=1, le=100)] = 10) -> dict[str, object]:
    """Count the owls of a wood.

    Args:
        wood: The wood's name.
        trees: How many trees to look at.
    """
    if wood == "Nowhere":
        raise ToolError("There is no such wood.")  # a model reads this
    return {"wood": wood, "owls": trees // 3}


@module.tool(effect="read")
async def watch(hours: int, context: Context) -> str:
    """Watch owls, hour by hour."""
    for hour in range(1, hours + 1):
        await context.progress(hour / hours, f"hour {hour}")
        await asyncio.sleep(1)  # of what comes faster an agent sees the latest
    return f"watched for {hours} hours"


@module.tool(effect="once")
async def adopt(owl: str, user_id: str) -> list[str]:
    """Adopt an owl, and say which ones the user has adopted."""
    adopted.setdefault(user_id, []).append(owl)
    return adopted[user_id]


@module.tool(effect="once")
async def sleep(seconds: float) -> str:
    """Do nothing for a while, as an owl by day."""
    await asyncio.sleep(seconds)
    return "awake"


@module.tool(effect="read")
async def visit(owl: str) -> str:
    """Visit an owl that is out when somebody comes for the first time."""
    if owl not in visitors:
        visitors.add(owl)
        raise ModuleBusy(0.1)  # nothing was done: come back in a tenth of a second
    return f"{owl} is at home"


@module.tool(effect="idempotent", daily_limit=2)
async def feed(owl: str) -> str:
    """Feed an owl."""
    return f"{owl} is full"


@module.tool(effect="once", concurrency_key="nest")
async def build(nest: str, twig: str) -> list[str]:
    """Add a twig to a nest, and say which ones it has."""
    twigs = nests.get(nest, [])
    await sleep(0.1)  # meanwhile another call would read the same twigs, and one of the two would be lost
    nests[nest] = [*twigs, twig]
    return nests[nest]


@module.tool(permission="admin", effect="once")
async def release(owl: str) -> str:
    """Let an owl fly."""
    return f"{owl} is free"


@module.tool(effect="read")
async def greet(user_id: str, context: Context) -> str:
    """Greet the user in whose name the call is made: the fleet says who that is, and no model."""
    return f"Hello, {user_id}, who may do what a {context.permission} may."


@module.tool(effect="read")
async def photograph(owl: str) -> Image:
    """Take a picture of an owl."""
    return Image(PIXEL, name=f"{owl}.png")


@module.tool(effect="once", requires_gate=True)
async def announce(text: str) -> str:
    """Tell everybody."""
    return f"told everybody: {text}"


@module.tool(effect="once", timeout_seconds=0.5, sensitive=("card",))
async def order_mice(number: int, card: str) -> str:
    """Order mice from a shop that never answers in time."""
    await asyncio.sleep(60)
    return "ordered"


@module.tool(effect="once")
async def start_survey(wood: str) -> dict[str, str]:
    """Begin to count every owl of a wood, which takes long."""
    surveys[wood] = 0
    return {"survey": wood}


@module.tool(effect="read")
async def survey_status(survey: str) -> dict[str, object]:
    """Say how far a survey is."""
    surveys[survey] += 1
    return {"status": "completed" if surveys[survey] >= 2 else "running", "owls": 41}


app = module.app  # at the end, when it has all its tools
