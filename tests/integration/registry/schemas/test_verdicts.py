"""Tools are judged once for a content, and what that takes of memory is bounded."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.programs.child_program import run_apart
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.schemas import checker, validation
from toolfleet_registry.schemas.validation import checked, schema_fault

MEMORY = 2**20 * 300  # bytes, beside those of the packages
SECONDS = 110


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at before is what is tested."""
    monkeypatch.setattr(validation, "_compiled_schemas", validation._CompiledSchemas())
    monkeypatch.setattr(validation, "_verdicts", validation._Verdicts())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every schema that is compiled from now on."""
    found, compile_one = list[Any](), checker.compiled

    def noting(schema: Any) -> Any:
        found.append(schema)
        return compile_one(schema)

    monkeypatch.setattr(validation, "compiled", noting)
    return found


def tools_of(count: int, **schema: Any) -> list[ToolDefinition]:
    """Each of another content."""
    return [
        ToolDefinition(name=f"owls.t{n}", input_schema={"properties": {"x": {**schema, "title": f"{n}"}}})
        for n in range(count)
    ]


def test_a_refresh_that_finds_nothing_new_compiles_nothing(compiled: list[Any]) -> None:
    """However many tools there are: their definitions are new objects, and say the same."""
    for _ in range(3):
        assert not any(map(schema_fault, tools_of(1_000)))

    assert len(compiled) == 1_000
    assert len(validation._compiled_schemas._checkers) == 0  # what nobody calls is not kept compiled


def test_what_is_called_is_compiled_once_more(compiled: list[Any]) -> None:
    """And then kept for all tools with the same content."""
    first, second = (tools_of(1, type="string")[0] for _ in range(2))
    assert schema_fault(first) is None

    for _ in range(3):
        assert checked(first, {"x": 1}).fault == checked(second, {"x": 1}).fault is not None
    assert len(compiled) == 2


@pytest.mark.parametrize("side", ["input_schema", "output_schema"])
def test_a_fault_is_known_as_well(side: str, compiled: list[Any]) -> None:
    """To those who call the tool all the same, too."""
    broken: dict[str, Any] = {side: {"type": "object", "properties": {"x": {"type": "owl"}}}}
    for _ in range(3):
        assert "must be one of" in str(schema_fault(ToolDefinition(name="owls.t", **broken)))
    assert compiled.count(broken[side]) == 1

    wrong = checked(ToolDefinition(name="owls.t", **broken), {}).fault
    assert (wrong is not None) == (side == "input_schema")
    assert compiled.count(broken[side]) == 1


def test_only_so_many_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch, compiled: list[Any]) -> None:
    """The oldest goes first, and is found again."""
    monkeypatch.setattr(validation, "_MOST_VERDICTS", 5)
    tools = tools_of(8)
    for tool in tools:
        assert schema_fault(tool) is None
    assert len(validation._verdicts._faults) == 5
    for tool in tools[-5:]:
        assert schema_fault(tool) is None
    assert len(compiled) == 8
    assert schema_fault(tools[0]) is None
    assert len(compiled) == 9


def letters(times: int, patterns: int) -> Callable[[int], dict[str, Any]]:
    return lambda n: {f"a{k}": {"pattern": rf"\p{{L}}{{{times}}}{n * patterns + k}"} for k in range(patterns)}


MANIFESTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "ten patterns of 16 letters": letters(16, 10),
    "one of a hundred letters": letters(100, 1),
    "as many letters as may be": letters(4, 9),
    "one of as many letters as may be": letters(12, 1),
    "as many of any character": lambda n: {"a0": {"pattern": f".{{1,500}}{n}"}},
    "as many patterns as may be": lambda n: {
        f"a{k}": {"pattern": f"[ab]*a[ab]{{12}}{n * 400 + k}"} for k in range(400)
    },
    "large ones that nothing refers to": lambda n: {
        "a0": {"$defs": {f"d{k}": {"pattern": rf"\p{{L}}{{99}}{n}{k}"} for k in range(100)}}
    },
}


def take_all() -> None:
    """In a process of its own: judge each manifest's tools, and call them, with texts that take all that they can take."""
    text = "abbabaabab" * 20 + "éö"
    before = Path("/proc/self/statm").read_text().split()
    most = MEMORY + int(before[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name, members in MANIFESTS.items():
        print(name, flush=True)  # noqa: T201 - the last one is shown if this process ends
        tools = [ToolDefinition(name=f"owls.t{n}", input_schema={"properties": members(n)}) for n in range(500)]
        for tool in tools[:60]:
            schema_fault(tool)
        for tool in tools[:60]:
            checked(tool, {"a0": text, "a1": text, "a2": text})


@pytest.mark.slow
def test_no_manifest_takes_much_memory() -> None:
    """Of 360 bytes a tool, of which each once took eight megabytes."""
    run_apart(take_all, __file__, seconds=SECONDS)
