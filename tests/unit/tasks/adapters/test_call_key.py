"""The key of a framework's call: one for one intention."""

import pytest

from toolfleet_tasks.adapters.calling import call_key


def deep() -> list[object]:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


def test_the_order_of_arguments_means_nothing() -> None:
    """A repeat may write them in another one."""
    assert call_key("r", "c", "owls.echo", {"a": 1, "b": 2}) == call_key("r", "c", "owls.echo", {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("run_id", "call_id", "tool", "arguments"),
    [
        ("s", "c", "owls.echo", {"a": 1}),  # another run
        (None, "c", "owls.echo", {"a": 1}),  # no run
        ("r", "d", "owls.echo", {"a": 1}),  # another call
        ("r", "c", "owls.nap", {"a": 1}),  # another tool
        ("r", "c", "owls.echo", {"a": "1"}),  # other arguments
        ("r", "c", "owls.echo", '{"a": 1}'),  # text that is no object
    ],
)
def test_whatever_differs_is_another_intention(run_id: str | None, call_id: str, tool: str, arguments: object) -> None:
    """Two intentions never share a key."""
    assert call_key(run_id, call_id, tool, arguments) != call_key("r", "c", "owls.echo", {"a": 1})


@pytest.mark.parametrize("arguments", [deep(), {"a": object()}, {"a": float("nan")}, {"\ud800": 1}, {1: 2, "a": 3}])
def test_any_arguments_have_a_key(arguments: object) -> None:
    """What no call can have is refused later, and not by an exception here."""
    key = call_key("r", "c", "owls.echo", arguments)

    assert key is not None
    assert len(key) == 64


@pytest.mark.parametrize("call_id", [None, ""])
def test_a_call_without_an_id_has_no_key(call_id: str | None) -> None:
    """Two such calls would else be taken for one."""
    assert call_key("r", call_id, "owls.echo", {}) is None
