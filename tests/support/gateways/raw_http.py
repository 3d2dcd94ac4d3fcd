"""Sends bytes to a gateway as no HTTP client would, and reads what it answers."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

from support.gateways.gateway_process import ServedGateway


@dataclass(frozen=True)
class RawAnswer:
    """An answer: its head and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The body, which must be a problem of RFC 9457."""
        assert self.headers.get("content-type") == "application/problem+json", self
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        assert found["type"] == f"urn:toolfleet:problem:{found['error_code'].replace('_', '-')}"
        assert {"title", "detail", "instance", "effect_state", "retryable"} <= set(found)
        return found


async def answer_to(gateway: ServedGateway, *parts: bytes, pause_seconds: float = 0) -> RawAnswer:
    """The first answer to what is sent in these parts; the gateway may answer, or close, before all of them are."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    sending = asyncio.create_task(_send(writer, parts, pause_seconds))
    try:
        return await _read(reader)
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        await _close(writer)


async def only_answer_to(gateway: ServedGateway, data: bytes) -> RawAnswer:
    """The answer to what is sent, of a gateway that then closes the connection, and has said nothing else."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    try:
        writer.write(data)
        answer = await _read(reader)
        rest = await reader.read()
    finally:
        await _close(writer)
    assert (answer.headers.get("connection"), rest) == ("close", b""), (answer, rest)
    return answer


def request(
    method: str,
    path: str,
    *,
    key: str = "",
    host: str = "localhost",
    headers: tuple[str, ...] = (),
    body: str | bytes | None = None,
) -> bytes:
    """A request with these headers beside the usual ones; JSON, if it has a body and nothing else is said."""
    lines = [f"{method} {path} HTTP/1.1"]
    if host:
        lines.append(f"Host: {host}")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    data = body.encode() if isinstance(body, str) else body or b""
    said = {line.partition(":")[0].lower() for line in headers}
    if body is not None:
        if "content-type" not in said:
            lines.append("Content-Type: application/json")
        if not {"content-length", "transfer-encoding"} & said:
            lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + data


async def _send(writer: asyncio.StreamWriter, parts: tuple[bytes, ...], pause_seconds: float) -> None:
    with contextlib.suppress(OSError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_seconds)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> RawAnswer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    headers = dict[str, str]()
    for line in filter(None, head[1:]):
        name, _, value = line.partition(":")
        assert name.lower() not in headers, head
        headers[name.lower()] = value.strip()
    return RawAnswer(int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0))))
