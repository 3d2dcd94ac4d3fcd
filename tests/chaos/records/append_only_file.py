"""Finds in Redis's append-only file the results that were stored, also those whose text was dropped when it had been had."""

import json
import re
from collections.abc import Collection
from pathlib import Path

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.redis.keys import Keys

_SET = re.compile(rb"\$3\r\nSET\r\n\$\d+\r\n" + re.escape(Keys().result("").encode()) + rb"(\S+)\r\n\$(\d+)\r\n")


def written_results(folder: Path, call_ids: Collection[str]) -> dict[str, ToolResult]:
    """Of these calls, from all such files below the folder; of each the first that was written."""
    found: dict[str, ToolResult] = {}
    for path in sorted(folder.rglob("*.aof")):
        written = path.read_bytes()
        for match in _SET.finditer(written):
            call_id = match[1].decode()
            meta = json.loads(written[match.end() : match.end() + int(match[2])]) if call_id in call_ids else {}
            if meta.get("status") == "SUCCESS":
                found.setdefault(call_id, ToolResult.model_validate_json(meta["result"]))
    return found
