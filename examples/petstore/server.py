"""A pet store in memory, as `openapi.json` beside it describes one: `python -m uvicorn --app-dir examples petstore.server:app`.

The document is an example of the OpenAPI specification's (Apache 2.0); its server is none of theirs.
"""

from itertools import count
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Pet = dict[str, Any]

pets: dict[int, Pet] = {}
_numbers = count(1)


async def find_pets(request: Request) -> Response:
    """Those with one of the tags, if any are named; at most `limit`."""
    tags, limit = request.query_params.getlist("tags"), request.query_params.get("limit")
    found = [pet for pet in pets.values() if not tags or pet.get("tag") in tags]
    return JSONResponse(found[: int(limit)] if limit else found)


async def add_pet(request: Request) -> Response:
    """Keep another one."""
    number = next(_numbers)
    pets[number] = {**await request.json(), "id": number}
    return JSONResponse(pets[number])


async def find_pet(request: Request) -> Response:
    """One of them."""
    return JSONResponse(_pet(request))


async def delete_pet(request: Request) -> Response:
    """Forget one."""
    del pets[_pet(request)["id"]]
    return Response(status_code=204)


async def health(_: Request) -> Response:
    """Say that it is there."""
    return Response()


def _pet(request: Request) -> Pet:
    number = request.path_params["id"]
    if number not in pets:
        raise HTTPException(404, f"There is no pet {number}.")
    return pets[number]


app = Starlette(
    routes=[
        Route("/health", health),
        Route("/api/pets", find_pets),
        Route("/api/pets", add_pet, methods=["POST"]),
        Route("/api/pets/{id:int}", find_pet),
        Route("/api/pets/{id:int}", delete_pet, methods=["DELETE"]),
    ]
)
