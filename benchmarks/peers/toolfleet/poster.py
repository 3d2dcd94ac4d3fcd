"""Posting a call to its module as our worker does, by its HTTP client, for whoever else has an event loop."""

import json
from http import HTTPStatus
from typing import Any

from benchmarks.work import MODULE_URL, path_of

from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.module_client import SendProgress
from toolfleet_workers.executors.request import COMMON_HEADERS, ModuleRequest, Target


class OwnPoster:
    """As `AsyncPoster`."""

    def __init__(self) -> None:
        self._client = HttpClient()
        self._targets: dict[str, Target] = {}

    async def __call__(self, tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
        """Post, and read the answer. Raises `NoReply`, and `RuntimeError` for a bad status."""
        path = path_of(tool_name)
        target = self._targets.get(path)
        if target is None:
            target = self._targets[path] = Target.of(MODULE_URL + path, COMMON_HEADERS)
        body = json.dumps({"tool_name": tool_name, "arguments": arguments, "user_id": user_id}).encode()
        request = ModuleRequest(target.origin, target.head + f"Content-Length: {len(body)}\r\n".encode(), body)
        response = await self._client.post(request, SendProgress())
        try:
            if response.status != HTTPStatus.OK:
                raise RuntimeError(f"the module answered {response.status}")
            answer = bytearray()
            while chunk := await response.read_chunk():
                answer += chunk
            return json.loads(answer)
        finally:
            response.release()
