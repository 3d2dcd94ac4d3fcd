"""What a program can do in Monty, what it cannot, and that its steps can be repeated."""

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from pydantic_monty import MontyCrashedError

from toolfleet_registry.local.program_tools import LACKS, MODULES
from toolfleet_workers.execution import interpreter
from toolfleet_workers.execution.interpreter import (
    Broken,
    Called,
    Finished,
    Interpreter,
    Raised,
    Reply,
    Returned,
    SnapshotNotRead,
    Step,
    Suspended,
    format_of,
)

TOOLS = {"crm__list": "crm.list", "mail__send": "mail.send", "git_hub__push_all": "git-hub.push-all"}


async def begin(source: str, program_id: str = "p-1") -> Step:
    return await Interpreter().begin(source, program_id=program_id, created_at=1_800_000_000, functions=TOOLS.get)


async def resume(step: Step, replies: Mapping[int, Reply]) -> Step:
    assert isinstance(step, Suspended)
    return await Interpreter().resume(step.snapshot, replies, functions=TOOLS.get)


async def ended(source: str) -> tuple[Step, list[Called]]:
    """Return the end of a program whose calls return their arguments, and its calls."""
    step, calls, waiting = await begin(source), list[Called](), dict[int, Called]()
    while isinstance(step, Suspended):
        calls += step.calls
        waiting |= {call.monty_id: call for call in step.calls}
        step = await resume(step, {each: Returned(waiting[each].arguments) for each in step.pending})
    return step, calls


async def error_of(source: str) -> str:
    step, _ = await ended(source)
    assert isinstance(step, Broken), step
    assert step.code in {"module_error", "invalid_arguments"}
    return step.text


async def value_of(source: str) -> Any:
    step, _ = await ended(source)
    assert isinstance(step, Finished), step
    return step.value


async def test_a_program_waits_for_its_calls_and_goes_on_with_their_values() -> None:
    """Loops, branches of `gather`, errors and functions keep their places while it waits; replies come in any order."""
    source = """
import asyncio
async def twice(to):
    return [await mail__send(to=to), await mail__send(to=to)]
rows = await crm__list(limit=2)
both = await asyncio.gather(twice("a"), crm__list(limit=rows["n"]))
try:
    await mail__send(to="b")
except RuntimeError as exc:
    said = str(exc)
send = mail__send
total = 0
for n in range(3):
    total += await send(n=n)
return {"both": both, "said": said, "total": total}
"""
    step = await begin(source)
    assert isinstance(step, Suspended)
    assert step.calls == (Called(min(step.pending), "crm.list", {"limit": 2}),)
    step = await resume(step, {min(step.pending): Returned({"n": 7})})
    assert isinstance(step, Suspended)
    second, first = sorted(step.calls, key=lambda call: call.tool_name)
    assert (first.arguments, second.arguments) == ({"to": "a"}, {"limit": 7})
    step = await resume(step, {second.monty_id: Returned("rows")})
    assert isinstance(step, Suspended)
    assert (list(step.calls), set(step.pending)) == ([], {first.monty_id})
    for value in ("x", "y"):
        step = await resume(step, {max(step.pending): Returned(value)})
        assert isinstance(step, Suspended)
    step = await resume(step, {max(step.pending): Raised("busy (effect none): later")})
    for n in range(3):
        assert isinstance(step, Suspended)
        assert step.calls[0].arguments == {"n": n}
        step = await resume(step, {step.calls[0].monty_id: Returned(n)})

    assert step == Finished({"both": [["x", "y"], "rows"], "said": "busy (effect none): later", "total": 3})


async def test_a_repeated_step_makes_the_same_calls() -> None:
    """Random numbers, hashes and the clock are the program's; another program has other random numbers."""
    source = """
import datetime, random, time
await crm__list(r=random.random(), h=hash("abc"), s=list({"a", "b", "c"}), t=time.time(), d=str(datetime.datetime.now()))
time.sleep(3600)
await crm__list(r=random.random(), t=time.time())
"""
    steps = [await begin(source) for _ in range(2)]
    other = await begin(source, "p-2")
    assert isinstance(other, Suspended)
    calls = [step.calls for step in steps if isinstance(step, Suspended)]
    more = [await resume(step, {calls[0][0].monty_id: Returned(None)}) for step in steps]
    again = [step.calls for step in more if isinstance(step, Suspended)]

    assert calls[0] == calls[1] != other.calls
    assert again[0] == again[1]
    assert calls[0][0].arguments["d"] == "2027-01-15 08:00:00"
    assert again[0][0].arguments["t"] == calls[0][0].arguments["t"] == 1_800_000_000


async def test_a_reply_that_nothing_waits_for_is_left_out() -> None:
    """Nor is one handed over twice: the state stays as it is."""
    step = await begin("await crm__list()\nawait mail__send()")
    assert isinstance(step, Suspended)

    assert await resume(step, {99: Returned(1)}) == Suspended(step.snapshot, (), step.pending)
    assert await resume(step, {}) == Suspended(step.snapshot, (), step.pending)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("while True:\n    pass", "TimeoutError|more time"),
        ("[0] * 10**9", "MemoryError"),
        ("x = 'a'\nwhile True:\n    x += x", "MemoryError"),
        ("7 ** 10**9", "MemoryError|Overflow"),
        ("x = 10\nfor i in range(40):\n    x = x * x", "MemoryError|TimeoutError|more time"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError"),
        ("(" * 5000 + ")" * 5000, "SyntaxError"),
        ("import asyncio\nawait asyncio.gather(*[crm__list(n=i) for i in range(600)])", "more than 100 calls"),
        ("while True:\n    crm__list", "TimeoutError|suspension"),
        ("x = [0]\nfor i in range(60):\n    x = [x, x]\nreturn x", "Its value has more than 2097152 bytes"),
        ("x = [0]\nfor i in range(60):\n    x = [x, x]\nawait crm__list(a=x)", "The arguments of its calls have more than"),
        ("return 'x' * 10_000_000", "Its value has more than 2097152 bytes"),
    ],
)  # fmt: skip
async def test_a_bomb_ends_its_program_only(source: str, words: str) -> None:
    """Time, memory, depth and steps are bounded, and the next program runs."""
    assert re.search(words, await error_of(source)), source
    assert await value_of("return 1 + 1") == 2


LARGE = [
    "import asyncio\ns = 'x' * 1_000_000\nawait asyncio.gather(*[crm__list(s=s) for _ in range(90)])",
    "s = [0]\nfor i in range(17):\n    s = [s, s]\nfor i in range(90):\n    try:\n        crm__list(s=[s, {1}])\n    except TypeError:\n        pass",
]  # fmt: skip


@pytest.mark.parametrize("source", LARGE, ids=["made", "refused"])
async def test_a_value_that_is_passed_often_is_read_until_the_bound(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Monty it is there once, and here once a call, also a refused one: the program ends with the first call too many."""
    sizes, real = list[int](), interpreter._least_size

    def noted(value: Any, most: int) -> int:
        sizes.append(real(value, most))
        return sizes[-1]

    monkeypatch.setattr(interpreter, "_least_size", noted)

    assert "The arguments of its calls have" in await error_of(source)
    assert len(sizes) == 3


async def test_a_process_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped one, say: its program has not failed, and the next step runs in another process."""
    monkeypatch.setattr(interpreter, "_HUNG_SECONDS", 1)
    monkeypatch.setattr(interpreter, "_pool", cache(interpreter._pool.__wrapped__))
    with interpreter._pool().checkout() as session:
        hung = session.worker_pid
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)

    with contextlib.suppress(MontyCrashedError):  # unless it was replaced by then
        assert isinstance(await begin("return 1"), Finished)
    assert await value_of("return 1") == 1
    interpreter._pool().__exit__(None, None, None)


@pytest.mark.parametrize("use", ["return x", "await crm__list(v=x)"])
async def test_a_value_is_no_deeper_than_messages_are(use: str) -> None:
    """Else it could be stored by no worker, and what is deeper than Monty's own bound would be something else."""
    source = "x = []\nfor i in range({}):\n    x = [x]\n" + use

    for depth in (400, 200):
        assert "not too deep" in await error_of(source.format(depth))
    assert isinstance(await begin(source.format(190)), Finished | Suspended)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), 10**400, "\ud800"])
async def test_a_reply_that_cannot_go_in_ends_the_program(value: Any) -> None:
    """It raises nothing here."""
    step = await resume(await begin("return str(await crm__list())[:3]"), {0: Returned(value)})
    assert isinstance(step, Finished | Broken)


@pytest.mark.parametrize(
    "source",
    [
        "open('/etc/passwd').read()",
        "open('/tmp/x', 'w').write('x')",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "import os\nos.environ['PATH']",
        "import os\nos.getenv('PATH') + ''",
        "import os\nos.listdir('/')",
        "import os\nos.system('id')",
        "import subprocess",
        "import socket",
        "import ctypes",
        "import pydantic_monty",
        "__import__('os').system('id')",
        "().__class__.__base__.__subclasses__()",
        "crm__list.__globals__",
        "crm__list.__code__",
        "(lambda: 0).__globals__['__builtins__']",
        "globals()['crm__list']",
        "exec('import socket')",
        "eval('open(\"/etc/passwd\")')",
        "breakpoint()",
        "input()",
    ],
)
async def test_there_is_no_way_out(source: str) -> None:
    """Files, environment, other programs, the network and the interpreter's own parts are not there."""
    assert "Error" in await error_of(source)


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("await git_hub__push_all(a=1)", ["git-hub.push-all"]),
        ("await getattr(mail__send, '__call__', mail__send)()", ["mail.send"]),
        ("mail__send = crm__list\nawait mail__send()", ["crm.list"]),  # a name of its own
        ("mail__send.__name__ = 'crm__list'\nawait mail__send()", []),
        ("await crm__drop()", []),
        ("await __import__('crm').list()", []),
        ("await crm.list()", []),
        ("import crm\nawait crm.list()", []),
        ("await crm__list_()", []),
        ("await сrm__list()", []),  # its first letter is Cyrillic # noqa: RUF001
        ("await crm__list(1)", []),
        ("await crm__list(a={1, 2})", []),
        ("await crm__list(a=b'x')", []),
        ("await crm__list(a=float('inf'))", []),
        ("class A:\n    pass\nawait crm__list(a=A())", []),
    ],
)
async def test_only_the_names_of_tools_make_calls(source: str, calls: list[str]) -> None:
    """A call is what stands under a tool's own name, by keyword, and of values that JSON has."""
    _, made = await ended(source)

    assert [call.tool_name for call in made] == calls


@pytest.mark.parametrize("source", ["crm__list()\nreturn 3", "return [crm__list()]", "x = crm__list()"])
async def test_a_call_without_await_is_never_made(source: str) -> None:
    """The program has failed, and is told what it lacks."""
    assert "without its call of 'crm.list': write `await`" in await error_of(source)


async def test_a_snapshot_that_cannot_be_read_is_left() -> None:
    """Whatever is wrong with its bytes: another Monty may read it, and the next step of another program runs."""
    step = await begin("x = await crm__list()\nreturn x")
    assert isinstance(step, Suspended)
    data, reply = step.snapshot, {min(step.pending): Returned(1)}
    for broken in (b"x" * 40, data[:-5], data[:6] + b"\xff\xff" + data[8:], data[:200] + bytes(3) + data[203:]):
        with pytest.raises(SnapshotNotRead):
            await Interpreter().resume(broken, reply, functions=TOOLS.get)

    assert await resume(step, reply) == Finished(1)
    assert format_of(data) > 0


MISSING = {
    "class inheritance": "class A(Exception):\n    pass",
    "yield": "def f():\n    yield 1\nlist(f())",
    "property": "class A:\n    @property\n    def x(self):\n        return 1\nA().x + 1",
    "staticmethod": "class A:\n    @staticmethod\n    def x():\n        return 1\nA.x()",
    "classmethod": "class A:\n    @classmethod\n    def x(cls):\n        return 1\nA.x()",
    "del": "x = 1\ndel x",
    "async with": "async with crm__list() as x:\n    pass",
    "async comprehensions": "x = [y async for y in crm__list()]",
    "except*": "try:\n    pass\nexcept* ValueError:\n    pass",
    "gather(return_exceptions=...)": "import asyncio\nawait asyncio.gather(crm__list(), return_exceptions=True)",
    "asyncio.create_task": "import asyncio\nt = asyncio.create_task(crm__list())\nawait t",
    "asyncio.wait_for": "import asyncio\nawait asyncio.wait_for(crm__list(), 3)",
    "TaskGroup": "import asyncio\nasyncio.TaskGroup()",
}
"""What the description of `programs.run` says is missing, each with a program that needs it."""

NO_MODULES = "uuid statistics string operator io heapq textwrap enum zoneinfo contextlib urllib requests numpy"


def named(text: str) -> list[str]:
    """Return the entries of a list in the description, without what stands in parentheses behind them."""
    return re.sub(r" \(.*?\)", "", text).split(", ")


async def test_the_description_says_what_is_missing() -> None:
    """All of it, and nothing else: what is missing here has a program below."""
    assert named(LACKS) == [*MISSING]


@pytest.mark.parametrize("name", MISSING)
async def test_what_the_description_says_is_missing_is_missing(name: str) -> None:
    """A newer interpreter may have it: then the description has to change."""
    assert "Error" in await error_of(MISSING[name])


@pytest.mark.parametrize("name", named(MODULES))
async def test_the_modules_of_the_description_are_there(name: str) -> None:
    """They can be imported."""
    assert await value_of(f"import {name}\nreturn 1") == 1


@pytest.mark.parametrize("name", NO_MODULES.split())
async def test_other_modules_are_not_there(name: str) -> None:
    """A newer interpreter may have more: then the description has to change."""
    assert f"No module named '{name}'" in await error_of(f"import {name}")
