"""Reads a request's body, and replays it to the next reader."""

from starlette.types import Message, Receive

_MORE = "more_body"


async def whole_body(receive: Receive) -> bytes | None:
    """All of it; `None` if the client went away before its end."""
    parts = list[bytes]()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get(_MORE, False):
            return b"".join(parts)


def again(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then what else the client does."""
    is_read = False

    async def receiving() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, _MORE: False}

    return receiving
