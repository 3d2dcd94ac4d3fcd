"""Scripts out of `.lua` files, with named keys and arguments."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from toolfleet_registry.redis.script import Script, ScriptFolder

CLAIM = """
-- Begins a claim.
-- keys: record, limits...
-- args: token, terms(daily, cooldown)...
-- include: numbers

-- This is a comment.
local found = {}
for i, key in ipairs(limits) do found[#found + 1] = key .. ' ' .. terms[i].daily .. ' ' .. terms[i].cooldown end
return {record, token, twice(LONGEST), unpack(found)}
"""


@pytest.fixture
def claim(tmp_path: Path) -> Script:
    (tmp_path / "claim.lua").write_text(CLAIM.lstrip())
    (tmp_path / "numbers.lua").write_text("local function twice(number) return 2 * number end\n")
    return ScriptFolder(tmp_path, {"LONGEST": 15}).script("claim")


async def test_a_body_reads_names_and_not_positions(claim: Script, redis: Redis) -> None:
    """Keys, arguments, lists and groups are local variables, what is included and constants, too."""
    named = claim.parameters(record="r", limits=["a", "b"], token="t", terms=[(1, 2), (3, 4)])

    assert named == (3, "r", "a", "b", "t", 1, 2, 3, 4)
    assert claim.parameters_of(["r", "a", "b"], token="t", terms=[(1, 2), (3, 4)]) == named
    assert claim.command(record="r", token="t") == ("EVAL", claim.text, 1, "r", "t")
    assert "comment" not in claim.text
    answer = await redis.eval(claim.text, *named)
    assert [one.decode() if isinstance(one, bytes) else one for one in answer] == ["r", "t", 30, "a 1 2", "b 3 4"]
    assert await redis.script_load(claim.text) in {claim.digest, claim.digest.encode()}


def test_one_argument_too_many_or_too_few_is_an_error(claim: Script) -> None:
    """Also a key, and a member of a group."""
    with pytest.raises(TypeError, match="token"):
        claim.parameters(record="r")
    with pytest.raises(TypeError, match="effect"):
        claim.parameters(record="r", token="t", effect="read")
    with pytest.raises(TypeError, match="2 members"):
        claim.parameters(record="r", token="t", terms=[(1, 2, 3)])
    with pytest.raises(TypeError, match="0 keys"):
        claim.parameters_of([], token="t")


async def test_a_list_may_follow_another_one(tmp_path: Path, redis: Redis) -> None:
    """Each is a local variable, whichever of them are empty."""
    text = "-- args: mark, tools(name, version)..., names..., pins(field, digest)...\n\n"
    text += "local tool, pin = tools[1] or {}, pins[#pins] or {}\n"
    text += "return {mark, #tools, tool.version or '', table.concat(names, ' '), #pins, pin.digest or ''}\n"
    (tmp_path / "restore.lua").write_text(text)
    restore = ScriptFolder(tmp_path).script("restore")

    async def answer(**named: object) -> list[object]:
        found: Any = await redis.execute_command(*restore.command(mark="m", **named))
        return [one.decode() if isinstance(one, bytes) else one for one in found]

    tools, pins = [("a", "1"), ("b", "2")], [("x", "y"), ("p", "q")]
    assert await answer(tools=tools, names=["n", "o"], pins=pins) == ["m", 2, "1", "n o", 2, "q"]
    assert await answer(names=["n"]) == ["m", 0, "", "n", 0, ""]
    assert await answer(tools=tools, pins=pins) == ["m", 2, "1", "", 2, "q"]


def test_an_optional_key_comes_last_and_may_be_left_out(tmp_path: Path) -> None:
    """It is then not sent."""
    (tmp_path / "retract.lua").write_text("-- keys: caller_limit, intent?\n-- args: call_id\n\nreturn intent\n")
    retract = ScriptFolder(tmp_path).script("retract")

    assert retract.parameters(caller_limit="s", call_id="c") == (1, "s", "c")
    assert retract.parameters(caller_limit="s", intent="i", call_id="c") == (2, "s", "i", "c")


async def test_what_is_included_lazily_is_made_when_it_is_called(tmp_path: Path, redis: Redis) -> None:
    """With what it includes itself, as if it stood there; what another function needs at once is not made twice."""
    (tmp_path / "numbers.lua").write_text("local function twice(number) return 2 * number end\n")
    (tmp_path / "more.lua").write_text(
        "-- include: numbers\n\n"
        "local function four_times() return twice(twice(LONGEST)) end\nlocal function other() return twice(1) end\n"
        "local function all() return four_times() end\n"
    )
    lazy = "-- lazily: more(four_times, other)\n\nif mark == 'none' then return 0 end\nreturn {four_times(), other()}\n"
    (tmp_path / "eager.lua").write_text("-- args: mark\n-- include: more\n" + lazy + "return all()\n")
    (tmp_path / "lazy.lua").write_text("-- args: mark\n" + lazy)
    folder = ScriptFolder(tmp_path, {"LONGEST": 15})
    script = folder.script("lazy")

    assert await redis.eval(script.text, *script.parameters(mark="all")) == [60, 2]
    assert await redis.eval(script.text, *script.parameters(mark="none")) == 0
    assert script.text.splitlines()[1] == "local function four_times(...)"
    assert folder.script("eager").text.count("local function four_times") == 1


SUBJECT = """
-- A queue.
-- include: numbers

local most = 4

local function room(key)
  return most - redis.call('LLEN', key)
end

local function unused() return twice(room('')) end

-- script: put(queue, others...; value,
--   seconds, marks(name, at)...)
-- Puts a value. The word twice() in a comment, or in a text, has no function made.
if room(queue) <= 0 then return 'twice(1)' end
return redis.call('RPUSH', queue, value)

-- script: places(queue)
local twice_as_many = twice(room(queue))
return twice_as_many
"""


@pytest.fixture
def subject(tmp_path: Path) -> ScriptFolder:
    (tmp_path / "queue.lua").write_text(SUBJECT.lstrip())
    (tmp_path / "numbers.lua").write_text("local function twice(number) return 2 * number end\n")
    return ScriptFolder(tmp_path, {"LONGEST": 15})


async def test_a_file_has_several_scripts(subject: ScriptFolder, redis: Redis) -> None:
    """Each has the names of its own signature, and the functions that it uses, in any file."""
    put, places = subject.script("queue/put"), subject.script("queue/places")

    assert list(subject.names) == ["queue/put", "queue/places"]
    assert put.parameters(queue="q", others=["o"], value="v", seconds=1) == (2, "q", "o", "v", 1)
    assert await redis.execute_command(*places.command(queue="q")) == 8
    assert await redis.execute_command(*put.command(queue="q", value="v", seconds=1)) == 1
    assert await redis.execute_command(*places.command(queue="q")) == 6
    await redis.delete("q")
    assert ("twice(number)" in put.text, "unused" in put.text, "LONGEST" in put.text) == (False, False, False)
    assert [subject.functions("queue", "room"), "unused" in subject.functions("queue")] == [
        "local most = 4\nlocal function room(key)\nreturn most - redis.call('LLEN', key)\nend",
        True,
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("-- script: put\nreturn 1\n", "no signature: 'put'"),
        ("-- script: put(queue?, other)\nreturn 1\n", "comes after a list"),
        ("redis.call('PING')\n-- script: put(queue)\nreturn 1\n", "only functions and variables"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(text: str, fault: str, tmp_path: Path) -> None:
    """Whatever is asked of it."""
    (tmp_path / "queue.lua").write_text(text)

    with pytest.raises(ValueError, match=r"queue\.lua") as raised:
        list(ScriptFolder(tmp_path).names)
    assert fault in str(raised.value)


@pytest.mark.parametrize("name", ["queue", "queue/pu", "nowhere/put"])
def test_a_script_that_is_not_there_is_an_error(name: str, subject: ScriptFolder) -> None:
    """At once, where it is named: also a file that has only scripts with names of their own."""
    with pytest.raises(KeyError):
        subject.script(name)
