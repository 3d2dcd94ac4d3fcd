"""What is read of a result while its connection is lost."""

from support.servers.raw_redis import RawRedis, obliging, raw_redis
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results.verifier import ResultReader


def hang_up_once(raw: RawRedis, name: bytes) -> None:
    """Close every connection at the first command of this name, and answer the next ones."""

    def answer(command: list[bytes]) -> bytes:
        if command[0] != name:
            return b"*2\r\n+done\r\n+end\r\n" if command[0] == b"HMGET" else obliging(command)
        if raw.seen[name] == 1:
            raw.hang_up()
            return b""
        return b"+end\r\n"

    raw.answer = answer


async def test_a_lost_connection_is_no_answer() -> None:
    """A server that was started anew, or a router that has forgotten us: the next connection is asked, in the same second."""
    async with raw_redis() as raw:
        hang_up_once(raw, b"GET")
        reader = ResultReader(PipelinedConnection(connection_factory(raw.url), name="test"), lambda *_: None)
        assert await reader.peek(b"key") == b"end"
        raw.seen.clear()
        assert await reader.end_of("record", b"key") == "end"
        await reader.aclose()
