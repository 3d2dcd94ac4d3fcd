"""Names of operations as tools: each a name of ours, each of one operation only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.openapi.documents.operation_names import (
    LONGEST,
    argument_name,
    method_name,
    plain_name,
)
from toolfleet_modules.hosts.openapi.documents.operations import Operation
from toolfleet_registry.contracts.names import ToolName, name_fault, provider_name

TEXTS = st.one_of(st.text(min_size=1), st.from_regex(r"[A-Za-z0-9_./ -]{1,120}(-x[0-9a-f]{8})?", fullmatch=True))


def operation(method: str, path: str, operation_id: str | None = None) -> Operation:
    return Operation(method, path, operation_id, "", (), False, (), None, {}, (), ())


@pytest.mark.parametrize(
    ("operation_id", "name"),
    [
        ("listOwls", "listOwls"),
        ("owls.list-all_1", "owls.list-all_1"),
        ("find pet by id", "find_pet_by_id-x5afdeb8d"),
        ("eulen/zählen", "eulen_z_hlen-x"),
        ("日本", "x-x"),
    ],
)
def test_an_operation_id_is_the_name_if_it_is_one(operation_id: str, name: str) -> None:
    """Else what is readable of it, with a digest."""
    assert method_name(operation("get", "/x", operation_id)).startswith(name.removesuffix("5afdeb8d"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/owls", "get_owls"),
        ("/owls/barn-1", "get_owls_barn-1"),
        ("/owls/{id}", "get_owls_id-x"),
        ("/a_b", "get_a_b-x"),
    ],
)
def test_without_an_id_method_and_path_are_the_name(path: str, name: str) -> None:
    """With a digest wherever another path could look the same."""
    assert method_name(operation("get", path)).startswith(name)


@given(TEXTS, TEXTS)
def test_no_two_texts_have_one_name(first: str, second: str) -> None:
    """Neither as tools nor as arguments, nor in the form that providers take."""
    names = [plain_name(first), plain_name(second)]
    assert (names[0] == names[1]) == (first == second)
    assert (argument_name(first) == argument_name(second)) == (first == second)
    assert (provider_name(f"owls.{names[0]}") == provider_name(f"owls.{names[1]}")) == (first == second)


@given(TEXTS)
def test_every_name_is_admitted(text: str) -> None:
    """By the fleet, and by each provider."""
    name = f"owls.{plain_name(text)}"

    assert str(ToolName.parse(name)) == name
    assert name_fault(name) is None
    assert len(plain_name(text)) <= LONGEST
    assert 0 < len(argument_name(text)) <= 64
    assert argument_name(argument_name(text)).isascii()
