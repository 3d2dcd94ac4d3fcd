"""Names of operations as tools: each a name of ours, each of one operation only."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_modules.hosts.openapi.document import LONGEST, OpenApiDocument, argument_name, method_names
from toolfleet_registry.contracts.names import ToolName, name_fault, provider_name

TEXTS = st.one_of(st.text(min_size=1), st.from_regex(r"[A-Za-z0-9_./ -]{1,120}(-x[0-9a-f]{8})?", fullmatch=True))
LONG = "findTheOwlThatLives" * 6


def names_of(*operations: str) -> list[tuple[str, str | None]]:
    """Return present and former names of operations, each `method path`, then its operationId if it has one."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        method, path, *said = each.split(" ", 2)
        paths.setdefault(path, {})[method] = {"operationId": said[0]} if said else {}
    found = method_names(OpenApiDocument({"paths": paths}, is_30=False)).values()
    return [(each.name, each.former) for each in found]


@pytest.mark.parametrize(
    ("operations", "names"),
    [
        (["get /x listOwls"], [("listOwls", None)]),
        (["get /x owls.list-all_1"], [("owls.list-all_1", None)]),
        (["get /x find pet by id"], [("find_pet_by_id", "find_pet_by_id-x376f88fb")]),
        (["get /x eulen/zählen"], [("eulen_z_hlen", "eulen_z_hlen-x61025898")]),
        (["get /owls/{id} 日本"], [("get_owls_id", "x-xcf2abf0c")]),
        ([f"get /x {LONG}"], [(LONG[:LONGEST], f"{LONG[:90]}-x62a3d781")]),
        (["get /x owls-x12345678"], [("owls-x12345678-x9d2427f7", None)]),
        (["get /owls"], [("get_owls", None)]),
        (["get /owls/barn-1"], [("get_owls_barn-1", None)]),
        (["get /orders/{id}"], [("get_orders_id", "get_orders_id-x9a110b7d")]),
        (["get /owls/"], [("get_owls", "get_owls-xcad9073e")]),
        (["get /a_b"], [("get_a_b", "get_a_b-x13129271")]),
        (["get /a_/{b}.json"], [("get_a_b.json", "get_a__b_.json-xe2da5809")]),
        (["get /"], [("get", "get-x58f59598")]),
    ],
)
def test_a_name_is_one_that_a_model_can_say(operations: list[str], names: list[tuple[str, str | None]]) -> None:
    """The name that earlier versions gave the tool, with a digest, is its former one."""
    assert names_of(*operations) == names


@pytest.mark.parametrize(
    ("operations", "names"),
    [
        (
            ["get /orders/{id}", "get /orders/id"],
            [("get_orders_id-x9a110b7d", None), ("get_orders_id-x049b8f60", "get_orders_id")],
        ),
        (
            ["get /x find pet", "get /y find/pet"],
            [("find_pet-x5d738ac9", None), ("find_pet-x80f46fda", None)],
        ),
        (["get /owls", "get /x get_owls"], [("get_owls-xc3a41359", None), ("get_owls", None)]),
        (["get /a 日本", "get /b 日本"], [("get_a", "x-xcf2abf0c"), ("get_b", None)]),
        (
            ["get /owls/{id}", "post /owls/{id}"],
            [("get_owls_id", "get_owls_id-x01841f14"), ("post_owls_id", "post_owls_id-x6895499a")],
        ),
    ],
)
def test_where_two_operations_would_have_one_name_both_have_a_digest(
    operations: list[str], names: list[tuple[str, str | None]]
) -> None:
    """Their order in the document changes nothing, and an operationId that is a name stays the name of its operation."""
    assert names_of(*operations) == names
    assert {each for each, _ in names_of(*operations[::-1])} == {each for each, _ in names}


@given(st.lists(st.tuples(st.sampled_from(["get", "post"]), TEXTS, st.none() | TEXTS), max_size=6))
def test_no_two_operations_have_one_name(operations: list[tuple[str, str, str | None]]) -> None:
    """Each name is admitted by the fleet and by each provider; no former name is the name of another operation."""
    paths: dict[str, dict[str, Any]] = {}
    own = set[str]()
    for method, path, said in operations:
        if said not in own:
            paths.setdefault(f"/{path}", {})[method] = {} if said is None else {"operationId": said}
            own |= set() if said is None else {said}
    found = method_names(OpenApiDocument({"paths": paths}, is_30=False)).values()
    names = [f"owls.{each.name}" for each in found]
    former = [f"owls.{each.former}" for each in found if each.former is not None]

    assert len({*names, *former}) == len(names) + len(former)
    assert len(set(map(provider_name, names))) == len(names)
    for name in (*names, *former):
        assert str(ToolName.parse(name)) == name
        assert name_fault(name) is None
        assert len(name) <= LONGEST + len("owls.")


@given(TEXTS, TEXTS)
def test_no_two_texts_have_one_name_as_arguments(first: str, second: str) -> None:
    """Each is of at most 64 ASCII characters."""
    assert (argument_name(first) == argument_name(second)) == (first == second)
    assert 0 < len(argument_name(first)) <= 64
    assert argument_name(argument_name(first)).isascii()
