"""A hostile MCP server as a small program without libraries: `animal.py SPECIES`. Its tool `bad` misbehaves, if it comes to that; `good` never does."""

import base64
import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SPECIES = sys.argv[-1]
ANY = {"type": "object"}
SLEEP = ["sleep", "600"]
LISTS = itertools.count()
Message = dict[str, Any]
TOKENS: list[Any] = [99, None, [], {}]


def write(text: str | bytes) -> Any:
    data = text if isinstance(text, bytes) else text.encode()
    while data:
        data = data[os.write(1, data) :]


def send(message: Message) -> Any:
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def answer(asked: Message, result: Any) -> Any:
    send({"id": asked["id"], "result": result})


def say(asked: Message, text: str) -> Any:
    answer(asked, {"content": [{"type": "text", "text": text}]})


def notify(method: str, **params: Any) -> Any:
    send({"method": f"notifications/{method}", "params": params})


def end(number: int = signal.SIGKILL) -> Any:
    os.kill(os.getpid(), number)
    time.sleep(600)


def hang() -> None:
    while True:
        time.sleep(600)


def flood(descriptor: int, data: bytes) -> Any:
    def run() -> None:
        while True:
            os.write(descriptor, data)

    threading.Thread(target=run, daemon=True).start()


def leak(*, is_daemon: bool) -> Any:
    for _ in range(3):
        subprocess.Popen(SLEEP, start_new_session=is_daemon, stdin=subprocess.DEVNULL)


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def orphaned() -> None:
    """Leave a process whose parent is gone."""
    subprocess.run(["/bin/sh", "-c", "setsid sleep 600 & exit 0"], check=False, stdin=subprocess.DEVNULL)


def crash() -> None:
    ctypes.string_at(0)


def asks(asked: Message, method: str, **params: Any) -> Any:
    """Ask the client for something, and wait for its answer before the call's."""
    send({"id": "mine", "method": method, "params": params})
    reply = json.loads(sys.stdin.readline())
    say(asked, f"refused: {'error' in reply}")


def twice(asked: Message) -> Any:
    say(asked, "first")
    say(asked, "second")


def another(asked: Message, *, and_its_own: bool) -> Any:
    send({"id": 987654, "result": {"content": []}})
    send({"id": "987654", "error": {"code": 1, "message": "no"}})
    if and_its_own:
        say(asked, "mine")


def close(descriptor: int) -> Any:
    os.close(descriptor)
    hang()


def later(asked: Message) -> Any:
    """Answer long after the call was over, and every other message, too."""
    threading.Timer(3, lambda: say(asked, "late")).start()


def respawn() -> Any:
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM HUP; while :; do sleep 600; done"], start_new_session=True)


START: dict[str, Callable[[], Any]] = {
    "dies at start": lambda: sys.exit(3),
    "stops itself at start": lambda: end(signal.SIGSTOP),
    "leaks children at start and dies": lambda: (leak(is_daemon=True), sys.exit(1)),
    "floods stderr": lambda: flood(2, b"boo\n" * 4096),
    "writes one endless line to stderr": lambda: flood(2, b"boo" * 4096),
    "floods stdout with garbage": lambda: flood(1, b"garbage\n" * 512),
    "floods stdout with binary": lambda: flood(1, bytes(range(1, 256)) * 16 + b"\n"),
    "floods notifications": lambda: flood(1, b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n' * 64),
    "prints a banner": lambda: write("Welcome to the zoo!\n\n{\n[1,2\nnull\n42\n"),
    "ignores signals and the end of its input": deaf,
    "leaves orphans": orphaned,
}
HANDSHAKE: dict[str, Callable[[Message], Any]] = {
    "hangs in the handshake": lambda _: hang(),
    "dies in the handshake": lambda _: end(),
    "stops itself in the handshake": lambda _: end(signal.SIGSTOP),
    "speaks a wrong version": lambda asked: answer(
        asked, {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    ),
    "answers the handshake with an error": lambda asked: send(
        {"id": asked["id"], "error": {"code": -1, "message": "no"}}
    ),
    "answers the handshake with a number": lambda asked: send({"id": asked["id"], "result": 5}),
    "answers the handshake with nothing": lambda asked: answer(asked, {}),
}
LIST: dict[str, Callable[[], dict[str, Any]]] = {
    "changes its tools with every list": lambda: {"tools": [tool("good"), tool("bad"), tool(f"new{next(LISTS)}")]},
    "gives a schema of 5 MB": lambda: {
        "tools": [tool("good"), tool("bad"), {"name": "huge", "inputSchema": {**ANY, "description": "x" * 5_000_000}}]
    },
    "gives schemas that are none": lambda: {
        "tools": [
            tool("good"),
            tool("bad"),
            {"name": "text", "inputSchema": "object"},
            {"name": "none"},
            {"name": "list", "inputSchema": {"type": "array"}},
            {"name": "odd", "inputSchema": {**ANY, "properties": {"a": {"type": "owl"}}}},
            {"name": "far", "inputSchema": {**ANY, "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}},
            {"inputSchema": ANY},
            7,
        ]
    },
    "lists a tool twice": lambda: {"tools": [tool("good"), tool("bad"), tool("bad"), tool("good")]},
    "lists without end": lambda: {
        "tools": [tool(f"t{next(LISTS)}") for _ in range(50)] + [tool("good"), tool("bad")],
        "nextCursor": "x",
    },
    "has names of every kind": lambda: {
        "tools": [
            tool(name)
            for name in ("good", "bad", "", " ", "a b", "a/b", "ü", "\u202egnp", "x" * 5000, "\n", "a.b", "..")
        ]
    },
    "has no tools": lambda: {"tools": []},
    "answers a list with text": lambda: {"tools": "none"},
}
CALL: dict[str, Callable[[Message], Any]] = {
    "dies in a call": lambda _: end(),
    "leaves in a call": lambda _: os._exit(0),
    "crashes in a call": lambda _: crash(),
    "stops itself in a call": lambda _: end(signal.SIGSTOP),
    "hangs in a call": lambda _: hang(),
    "answers late": later,
    "answers twice": twice,
    "answers for another id": lambda asked: another(asked, and_its_own=True),
    "answers only for another id": lambda asked: another(asked, and_its_own=False),
    "closes stdout": lambda _: close(1),
    "closes stdin": lambda _: close(0),
    "writes half a line of 100 MB": lambda _: write(b'{"jsonrpc": "' + b"x" * 100_000_000),
    "writes a line of 100 MB": lambda asked: (write(b"x" * 100_000_000 + b"\n"), say(asked, "after")),
    "writes half an answer and dies": lambda asked: (write(f'{{"jsonrpc":"2.0","id":{asked["id"]},"resu'), end()),
    "leaks children": lambda asked: (leak(is_daemon=False), say(asked, "leaked")),
    "leaks children in other sessions": lambda asked: (leak(is_daemon=True), say(asked, "leaked")),
    "leaks a child that ignores signals": lambda asked: (respawn(), say(asked, "leaked")),
    "leaks a child that has its output, and dies": lambda _: (leak(is_daemon=True), end()),
    "answers with a number": lambda asked: send({"id": asked["id"], "result": 5}),
    "answers with unknown content": lambda asked: answer(asked, {"content": [{"type": "owl", "hoot": 1}]}),
    "answers with half an image": lambda asked: answer(
        asked,
        {
            "content": [
                {"type": "image", "data": "###", "mimeType": "image/png"},
                {"type": "image", "data": "", "mimeType": "?"},
            ]
        },
    ),
    "answers with numbers that are none": lambda asked: write(
        f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{"content":[],"structuredContent":{{"a":NaN}}}}}}\n'
    ),
    "answers deep": lambda asked: write(
        f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{"content":[],"structuredContent":{{"a":{"[" * 5000}{"]" * 5000}}}}}}}\n'
    ),
    "answers with 20 MB": lambda asked: say(asked, "x" * 20_000_000),
    "fails with 5 MB": lambda asked: send({"id": asked["id"], "error": {"code": -1, "message": "x" * 5_000_000}}),
    "floods progress": lambda asked: (
        [notify("progress", progressToken=asked["id"], progress=n) for n in range(2000)],
        say(asked, "done"),
    ),
    "tells progress that is none": lambda asked: (
        [
            notify("progress", progressToken=token, progress=what)
            for token in (asked["id"], *TOKENS)
            for what in (-1, "x", None, 1e308)
        ],
        say(asked, "done"),
    ),
    "asks for a sample": lambda asked: asks(asked, "sampling/createMessage", messages=[], maxTokens=1),
    "asks for input": lambda asked: asks(asked, "elicitation/create", message="Who?", requestedSchema=ANY),
    "asks for roots": lambda asked: asks(asked, "roots/list"),
    "asks for what is not there": lambda asked: asks(asked, "owls/hoot"),
    "cancels what is not its own": lambda asked: (notify("cancelled", requestId=asked["id"]), say(asked, "done")),
    "writes garbage between": lambda asked: (write("garbage\n" * 1000), say(asked, "done")),
    "says that its tools change, always": lambda asked: (
        [notify("tools/list_changed") for _ in range(500)],
        say(asked, "done"),
    ),
}


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": "A tool.", "inputSchema": ANY}


def usual() -> Message:
    return {"tools": [tool("good"), tool("bad")]}


def harmless(asked: Message) -> Any:
    say(asked, "done")


def handle(asked: Message) -> None:
    method, has_id = asked.get("method"), "id" in asked
    if not has_id:
        return
    if method == "server/discover":
        send({"id": asked["id"], "error": {"code": -32601, "message": "Method not found"}})
    elif method == "initialize":
        shake: Callable[[Message], Any] = HANDSHAKE.get(SPECIES, welcome)
        shake(asked)
    elif method == "tools/list":
        listed: Callable[[], Message] = LIST.get(SPECIES, usual)
        answer(asked, listed())
    elif method == "tools/call":
        bad = asked["params"]["name"] == "bad"
        do: Callable[[Message], Any] = CALL.get(SPECIES, harmless) if bad else harmless
        do(asked)
    elif method == "ping":
        answer(asked, {})


def welcome(asked: Message) -> None:
    info = {"name": "animal", "version": "1"}
    answer(
        asked, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}
    )


def main() -> None:
    if SPECIES in START:
        START[SPECIES]()
    for count, line in enumerate(sys.stdin):
        if SPECIES == "reads no more after its handshake" and count > 3:
            hang()
        try:
            handle(json.loads(line))
        except (ValueError, KeyError, TypeError):
            write(base64.b64encode(line.encode()) + b"\n")
    if SPECIES == "ignores signals and the end of its input":
        hang()


if __name__ == "__main__":
    main()
