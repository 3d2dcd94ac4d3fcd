"""Instead of a worker: answers every call at once, with next to no work, so that only the client is measured.

`python -m benchmarks.peers.toolfleet.answerer QUEUE`. Takes what waits, stores results as Celery does, and announces them where agents listen.
"""

import json
import os
import sys

from redis import Redis

from toolfleet_registry.settings import load_settings
from toolfleet_tasks.scripts import REPLY_DIGITS

_BATCH = 200
_IDLE_SECONDS = 1


def main() -> None:
    """Answer until it is ended."""
    redis, queue, keys = Redis.from_url(os.environ["BENCH_REDIS_URL"]), sys.argv[1], load_settings().keys
    while True:
        first = redis.brpop([queue], timeout=_IDLE_SECONDS)
        if first is None:
            continue
        messages = [first[1], *(redis.rpop(queue, _BATCH) or [])]
        with redis.pipeline(transaction=False) as pipe:
            for message in messages:
                headers = json.loads(message)["headers"]
                key, value = f"celery-task-meta-{headers['id']}", _result(headers["id"], headers["shadow"])
                pipe.setex(key, 60, value)
                pipe.publish(key, value)
                pipe.publish(keys.reply(headers["id"][-REPLY_DIGITS:]), value)
            pipe.execute()


def _result(call_id: str, tool: str) -> str:
    result = json.dumps({"tool_name": tool, "success": True, "result": {"echo": {}}})
    meta = {"status": "SUCCESS", "result": result, "traceback": None, "children": [], "task_id": call_id}
    return json.dumps(meta)


if __name__ == "__main__":
    main()
