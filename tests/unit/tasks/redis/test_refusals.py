"""Refusals of Redis are known by their code, whichever client and version brings them."""

from collections.abc import Callable

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import RedisError, ResponseError

from toolfleet_tasks.redis_connection import is_one_of, unavailable

CLIENTS = {"redis-py": BaseParser.parse_error, "own-connection": ResponseError}
OF_A_SCRIPT = "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -"  # before version 7


@pytest.mark.parametrize("read", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        (f"{OF_A_SCRIPT}OOM command not allowed when used memory > 'maxmemory'. ", False),
        ("MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.", False),
        ("NOREPLICAS Not enough good replicas to write.", False),
        ("LOADING Redis is loading the dataset in memory", True),
        ("BUSY Redis is busy running a script.", True),
        ("READONLY You can't write against a read only replica.", True),
        (f"{OF_A_SCRIPT}READONLY You can't write against a read only replica. ", True),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", None),
        ("NOPERM User ada has no permissions to run the 'get' command", None),
        ("ERR unknown command 'OOM'", None),
    ],
)
def test_a_server_that_takes_no_calls_is_told_from_a_wrong_command(
    read: Callable[[str], RedisError], answer: str, passes: bool | None
) -> None:
    """The refusal says whether it passes by itself; None is any other error."""
    away = unavailable(read(answer))

    assert (away and away.passes) == passes


@pytest.mark.parametrize("read", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("code", ["NOSCRIPT", "NOPERM", "OOM", "READONLY"])
def test_a_code_is_found_where_the_client_has_made_a_class_of_it(read: Callable[[str], RedisError], code: str) -> None:
    """redis-py takes the code out of the text."""
    assert is_one_of((code,), read(f"{code} some reason"))
    assert not is_one_of(("BUSY",), read(f"{code} some reason"))
