"""What was stored in Redis and dropped again is found in its file."""

import json
from pathlib import Path

from chaos.checks.test_checks import result
from chaos.records.append_only_file import written_results
from support.servers.redis_faults import faulty_redis
from toolfleet_registry.redis.keys import Keys


def test_a_result_that_was_dropped_is_found(tmp_path: Path) -> None:
    """Also after a restart; what somebody else has under such a key is not taken for one."""
    texts = {call_id: result(call_id).model_dump_json() for call_id in ("c1", "c2", "c3")}
    with faulty_redis(tmp_path) as redis:
        for call_id, text in texts.items():
            redis.look.set(Keys().result(call_id), json.dumps({"status": "SUCCESS", "result": text}), ex=60)
        redis.look.set(Keys().result("c4"), json.dumps({"status": "REVOKED", "result": None}), ex=60)
        redis.look.delete(Keys().result("c1"))
        with redis.restarted():
            pass
        redis.look.delete(Keys().result("c2"))
        found = written_results(tmp_path, {"c1", "c2", "c4"})

    assert found == {"c1": result("c1"), "c2": result("c2")}
