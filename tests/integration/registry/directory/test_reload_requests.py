"""Requests to read tool files anew: each host answers those that it has not seen, and nobody takes another's answer."""

from redis.asyncio import Redis

from toolfleet_registry.contracts.load_errors import ToolLoadError
from toolfleet_registry.directory.reload_requests import ReloadAnswer, ReloadRequests
from toolfleet_registry.redis.keys import Keys

KEYS = Keys()
ERROR = ToolLoadError(file="/owls/a.py", error_type="SyntaxError")


async def test_an_answer_is_for_all_requests_since_the_last(redis: Redis) -> None:
    """Those who ask together have one reload; one who asks later has nothing of it."""
    requests = ReloadRequests(redis, KEYS)
    seen = await requests.latest()
    asked = [await requests.ask() for _ in range(3)]
    begun = ReloadAnswer(module="owls")
    done = ReloadAnswer(module="owls", is_done=True, tools=3, errors=[ERROR])

    await requests.answer(seen, asked[-1], "one", begun)
    assert [list(await requests.answers(each)) for each in asked] == [[begun]] * 3
    await requests.answer(seen, asked[-1], "one", done)
    await requests.answer(asked[0], asked[-1], "two", ReloadAnswer(module="crows"))

    assert [[each.module for each in await requests.answers(each)] for each in asked] == [
        ["owls"],
        ["crows", "owls"],
        ["crows", "owls"],
    ]
    assert (await requests.answers(asked[0]))[0] == done
    assert await requests.answers(await requests.ask()) == []


async def test_a_count_that_redis_has_lost_is_begun_anew(redis: Redis) -> None:
    """A host that has seen more answers the one that it finds; and answers do not stay."""
    requests = ReloadRequests(redis, KEYS)
    number = await requests.ask()

    await requests.answer(900, number, "one", ReloadAnswer(module="owls"))

    assert [each.module for each in await requests.answers(number)] == ["owls"]
    assert 0 < await redis.ttl(KEYS.registry.reload_answers(number)) <= 600


async def test_what_is_no_answer_is_none(redis: Redis) -> None:
    """Whoever has written it; and of a thousand errors the first hundred are told."""
    requests = ReloadRequests(redis, KEYS)
    number = await requests.ask()
    await redis.hset(KEYS.registry.reload_answers(number), "x", "{")
    await requests.answer(0, number, "one", ReloadAnswer(module="owls", errors=[ERROR] * 1000))

    (answer,) = await requests.answers(number)
    assert len(answer.errors) == 100
