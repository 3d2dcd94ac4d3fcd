"""Looks for words wherever a program can read: a tool of a folder, and an MCP server over its standard streams."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from toolfleet.sdk import tool


@tool(effect="read")
def look(words: str, files: str) -> dict[str, object]:
    """Look for words, with commas between, in the files and in what each other process was given."""
    found = list[str]()
    processes = [each for each in Path("/proc").glob("[0-9]*") if int(each.name) not in {os.getpid(), os.getppid()}]
    for place in [*(each / "environ" for each in processes), *map(Path, files.split(","))]:
        try:
            text = place.read_bytes()
        except OSError:
            continue
        found += [f"{word} in {place}" for word in words.split(",") if word.encode() in text]
    return {"found": found, "user": os.getuid(), "home": os.environ["HOME"]}


@tool
def write(path: str) -> str:
    """Write a file."""
    Path(path).write_text("written")
    return "written"


def main() -> None:
    """Answer as an MCP server, one message a line."""
    known: dict[str, Callable[..., object]] = {"look": look, "write": write}
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in known]
    about = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "spy", "version": "1"},
    }
    for line in sys.stdin:
        asked = json.loads(line)
        results = {"initialize": about, "tools/list": {"tools": listed}, "ping": {}}
        if asked["method"] == "tools/call":
            try:
                answer = {"text": json.dumps(known[asked["params"]["name"]](**asked["params"]["arguments"]))}
            except OSError as exc:
                answer = {"text": repr(exc)}
            results["tools/call"] = {"content": [{"type": "text", **answer}]}
        if "id" in asked and asked["method"] in results:
            said = {"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}
        elif "id" in asked:
            said = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no such method"}}
        else:
            continue
        sys.stdout.write(f"{json.dumps(said)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
