"""Offers tools whose answers have each kind of content."""

import asyncio
import base64
import io
import struct
import wave
import zlib

import mcp_types as types

from conformance.everything.tools import Call, Tools, said

_PAUSE_SECONDS = 0.05
_PROGRESS_SECONDS = 0.5  # a fleet passes progress on a few times a second, and leaves out what comes between
_HEADER = "x-mcp-header"
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def add_content_tools(tools: Tools) -> None:
    """Offer them."""
    tools.add("test_simple_text", _text, "Answers with a text.")
    tools.add("test_image_content", _image, "Answers with an image.")
    tools.add("test_audio_content", _audio, "Answers with a sound.")
    tools.add("test_embedded_resource", _embedded, "Answers with a resource.")
    tools.add("test_multiple_content_types", _mixed, "Answers with a text, an image and a resource.")
    tools.add("test_error_handling", _error, "Fails.")
    tools.add("test_tool_with_logging", _logged, "Says three things while it runs.")
    tools.add("test_logging_tool", _logged, "Says three things while it runs, to who wants to hear them.")
    tools.add("test_tool_with_progress", _progress, "Says three times how far it is.")
    tools.add("test_reconnection", _reconnection, "Closes its stream before it answers.")
    tools.add("json_schema_2020_12_tool", _echoed, "Has a schema with rarer words.", schema=_SCHEMA)
    place = {"type": "string", _HEADER: "Place"}
    tools.add("test_header_argument", _echoed, "Has an argument that travels as a header too.", {"place": place})


def png() -> str:
    """One red pixel, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    pixel = chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00"))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + header + pixel + chunk(b"IEND", b"")).decode()


def image() -> types.ImageContent:
    """The pixel as content."""
    return types.ImageContent(type="image", data=png(), mime_type="image/png")


def embedded(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    """A resource as content."""
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return types.EmbeddedResource(type="resource", resource=resource)


async def _text(call: Call) -> types.CallToolResult:
    return said("This is a simple text response for testing.")


async def _image(call: Call) -> types.CallToolResult:
    return types.CallToolResult(content=[image()])


async def _audio(call: Call) -> types.CallToolResult:
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\x00\x00" * 8)
    data = base64.b64encode(written.getvalue()).decode()
    return types.CallToolResult(content=[types.AudioContent(type="audio", data=data, mime_type="audio/wav")])


async def _embedded(call: Call) -> types.CallToolResult:
    text = "This is an embedded resource content."
    return types.CallToolResult(content=[embedded("test://embedded-resource", "text/plain", text)])


async def _mixed(call: Call) -> types.CallToolResult:
    text = types.TextContent(type="text", text="Multiple content types test:")
    data = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return types.CallToolResult(content=[text, image(), data])


async def _error(call: Call) -> types.CallToolResult:
    return said("This tool intentionally returns an error for testing", is_error=True)


async def _logged(call: Call) -> types.CallToolResult:
    session, request = call.context.session, call.context.request_id
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await session.send_log_message("info", text, related_request_id=request)
        await asyncio.sleep(_PAUSE_SECONDS)
    return said("It has said three things.")


async def _progress(call: Call) -> types.CallToolResult:
    for done in (0, 50, 100):
        await call.context.session.report_progress(done, 100)
        await asyncio.sleep(_PROGRESS_SECONDS)
    return said("It has said three times how far it is.")


async def _reconnection(call: Call) -> types.CallToolResult:
    if call.context.close_sse_stream is not None:
        await call.context.close_sse_stream()
        await asyncio.sleep(_PAUSE_SECONDS * 4)
    return said("It answers on another stream.")


async def _echoed(call: Call) -> types.CallToolResult:
    return said(str(dict(call.arguments)))
