"""Parses the text of a document, JSON or YAML, in bounded time."""

import asyncio
import os
import sys

from toolfleet_modules.hosts.openapi.documents import yaml_child
from toolfleet_modules.hosts.openapi.documents.document import DocumentWrong, OpenApiDocument
from toolfleet_registry.system.http_bodies import loads_strict

MOST_BYTES = 8 * 2**20
"""Of a document."""

MOST_SELECTED_BYTES = 32 * 2**20
"""The largest JSON document, in bytes, of which only some operations are served."""

_YAML_SECONDS = 60.0


async def document_of(data: bytes, *, is_selected: bool = False) -> OpenApiDocument:
    """Return the document that a text is. `is_selected`: only some of its operations are served. Raises `DocumentWrong`."""
    is_json = data.lstrip()[:1] == b"{"
    most = MOST_SELECTED_BYTES if is_json and is_selected else MOST_BYTES
    if len(data) > most:
        way_out = f"; JSON may have {MOST_SELECTED_BYTES} with tags or paths" if most == MOST_BYTES else ""
        raise DocumentWrong(f"It has more than {most} bytes{way_out}.")
    if not is_json:
        data = await _json_of(data)
    try:
        root = await asyncio.to_thread(loads_strict, data)
    except ValueError as exc:
        raise DocumentWrong(f"It is {exc}.") from None
    return OpenApiDocument.of(root)


async def _json_of(data: bytes) -> bytes:
    """YAML as JSON, which another process makes of it: one that takes too long is ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        yaml_child.__name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        async with asyncio.timeout(_YAML_SECONDS):
            out, said = await process.communicate(data)
    except TimeoutError:
        raise DocumentWrong(f"It cannot be read within {_YAML_SECONDS:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == yaml_child.WRONG:
        raise DocumentWrong(said.decode(errors="replace"))
    if process.returncode and not said:
        raise DocumentWrong("It is too large, or nested too deep, to be read in the time and memory that there are.")
    if process.returncode:
        raise DocumentWrong(f"It cannot be read: {said.decode(errors='replace').strip().splitlines()[-1][:200]}.")
    return out
