"""A model behind the Chat Completions API, which most servers speak."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx

from agent_core.models.model import Answer, ModelAway
from toolfleet import ToolDefinition
from toolfleet.formats import convert, to_call

_MAX_REPLY_BYTES = 2 * 2**20  # more than a model can say
_MOST_CALLS = 128  # kept of one answer: each has a place in the history, and there a result
_TOLD_CHARS = 500  # of what a server says about an error


class OpenAICompatibleModel:
    """Asks `{url}/chat/completions`, once: whoever wants the turn repeats it. `instructions` come before the history."""

    def __init__(self, url: str, name: str, key: str | None, *, instructions: str, seconds: float) -> None:
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._name = name
        self._instructions = {"role": "system", "content": instructions}
        self._seconds = seconds
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(headers=headers, timeout=seconds)

    async def answer(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolDefinition]) -> Answer:
        """One request."""
        offered = convert(tools, "openai_chat")
        body: dict[str, Any] = {"model": self._name, "messages": [self._instructions, *messages]}
        reply = await self._ask({**body, "tools": list(offered)} if offered else body)
        try:
            message = reply["choices"][0]["message"]
            asked = (message.get("tool_calls") or [])[:_MOST_CALLS]
            calls = tuple(to_call(call, "openai_chat", tools) for call in asked)
            kept = {"role": "assistant", "content": _words(message.get("content"))}
            return Answer({**kept, "tool_calls": [_kept(call) for call in asked]} if asked else kept, calls)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as exc:
            raise ModelAway("The model's server answered in no form that is known.") from exc

    async def close(self) -> None:
        """Let go of its connections."""
        await self._client.aclose()

    async def _ask(self, body: dict[str, Any]) -> Any:
        try:
            # httpx's own limit is for each read: a server that trickles would never reach it.
            async with (
                asyncio.timeout(self._seconds),
                self._client.stream("POST", self._url, json=body) as response,
            ):
                reply = await _read(response)
            if response.is_error:
                said = reply[:_TOLD_CHARS].decode("utf-8", "replace")
                raise ModelAway(f"The model's server says {response.status_code}: {said}")
            # Through UTF-8: half a character, which JSON can hold, could neither be shown nor sent to the model again.
            return json.loads(json.dumps(json.loads(reply), ensure_ascii=False).encode("utf-8", "replace"))
        except (httpx.HTTPError, TimeoutError) as exc:
            raise ModelAway(f"The model's server does not answer ({type(exc).__name__}).") from exc
        except (ValueError, RecursionError) as exc:
            raise ModelAway("The model's server answered what is no JSON.") from exc


async def _read(response: httpx.Response) -> bytes:
    reply = bytearray()
    async for part in response.aiter_bytes():
        reply += part
        if len(reply) > _MAX_REPLY_BYTES:
            raise ModelAway(f"The model's answer has more than {_MAX_REPLY_BYTES} bytes.")
    return bytes(reply)


def _words(content: Any) -> str | None:
    """What the model says, also where its server sends it in parts. Raises `TypeError` for what is no text."""
    if isinstance(content, list):
        parts: list[Any] = content
        content = "".join(part["text"] for part in parts if part["type"] == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(content)
    return content


def _kept(call: Any) -> dict[str, Any]:
    """A tool call as the API takes it back; servers add fields of their own, which others refuse."""
    function = call["function"]
    arguments = {"name": str(function["name"]), "arguments": str(function.get("arguments") or "{}")}
    return {"id": str(call["id"]), "type": "function", "function": arguments}
