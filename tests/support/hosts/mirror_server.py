"""An MCP server without libraries whose tool `mirror` returns the requests that it was sent; with `old` it knows no newer version."""

import json
import sys
from typing import Any

seen: list[dict[str, Any]] = []
KEPT = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"}


def result_of(method: str) -> dict[str, Any] | None:
    """What it answers; `None` if it knows no such method."""
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "mirror", "version": "1"},
            }
        case "server/discover" if "old" not in sys.argv:
            return {**KEPT, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case "tools/list":
            return {**KEPT, "tools": [{"name": "mirror", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            kind = "task" if "old" in sys.argv else "complete"  # which is no word of older versions
            return {"content": [], "structuredContent": {"seen": seen}, "resultType": kind}
        case _:
            return None


for line in sys.stdin:
    asked = json.loads(line)
    seen.append(asked)
    if "id" in asked:
        found = result_of(asked["method"])
        rest = {"error": {"code": -32601, "message": "no"}} if found is None else {"result": found}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **rest}) + "\n")
        sys.stdout.flush()
