"""Reads the body of a module's reply within a limit."""

from toolfleet_registry.system.http_bodies import BodyReader
from toolfleet_workers.executors.http.module_client import ModuleResponse


async def read_reply(response: ModuleResponse, limit: int) -> bytes:
    """The body, as `BodyReader` reads it; `NoReply` passes."""
    reader = BodyReader(
        limit,
        encoding=response.field("content-encoding") or "",
        announced=response.field("content-length") or "",
    )
    while chunk := await response.read_chunk():
        reader.feed(chunk)
    return reader.finish()
