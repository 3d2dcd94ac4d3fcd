"""Who may make which API key, and its text."""

import math
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_gateway.auth.identity import Identity
from toolfleet_registry.access import (
    COMMAND_LINE,
    ROLES,
    ApiKey,
    KeyDraft,
    new_key_text,
    read_key_text,
    refusal_of,
)
from toolfleet_registry.contracts import Level
from toolfleet_registry.permissions import level_of_caller
from toolfleet_registry.policy.call_faults import modules_of

MODULES = ["owls", "notes", "files"]
LIMITS = st.sampled_from([None, 1, 2, 3])

drafts = st.builds(
    KeyDraft,
    user_id=st.sampled_from(["ada", "bob"]),
    permission=st.sampled_from(get_args(Level)),
    allowed_modules=st.one_of(st.none(), st.just("*"), st.frozensets(st.sampled_from(MODULES))),
    role=st.sampled_from(ROLES),
    expires_at=LIMITS,
    acts_for_others=st.booleans(),
    requests_per_second=LIMITS,
    streams=LIMITS,
)
guests = st.frozensets(st.sampled_from(MODULES))
admins = drafts.map(lambda draft: draft.model_copy(update={"role": "admin"}))


def made(draft: KeyDraft) -> ApiKey:
    return ApiKey(**dict(draft), id="a", created_at=0, created_by="command line")


def is_within(one: float | None, bound: float | None) -> bool:
    return bound is None or (one is not None and one <= bound)


def reach(key: KeyDraft, guest_modules: frozenset[str]) -> frozenset[str]:
    found = modules_of(made(key).caller, guest_modules)
    return frozenset(MODULES) | {"any other"} if found == "*" else frozenset(found)


@given(maker=st.one_of(drafts, admins), draft=drafts, guest_modules=guests)
def test_no_key_makes_one_that_may_more(maker: KeyDraft, draft: KeyDraft, guest_modules: frozenset[str]) -> None:
    """Neither call more, whatever guests may reach by default, nor operate more, nor in another's name, nor oftener, nor for longer."""
    if refusal_of(draft, Identity.of_key(made(maker)).key_maker()) is not None:
        return

    assert maker.role == "admin"
    assert ROLES.index(draft.role) <= ROLES.index(maker.role)
    assert level_of_caller(draft.permission) <= level_of_caller(maker.permission)
    assert reach(draft, guest_modules) <= reach(maker, guest_modules)
    assert draft.acts_for_others <= maker.acts_for_others
    assert maker.acts_for_others or draft.user_id == maker.user_id
    for name in ("expires_at", "requests_per_second", "streams"):
        assert is_within(getattr(draft, name), getattr(maker, name))


@given(maker=admins)
def test_a_key_makes_one_like_itself(maker: KeyDraft) -> None:
    """If it is an admin's: what it has it may hand on."""
    assert refusal_of(maker, Identity.of_key(made(maker)).key_maker()) is None


@given(draft=drafts)
def test_the_command_line_makes_any_key(draft: KeyDraft) -> None:
    """Whoever reaches the store could write it there."""
    assert refusal_of(draft, COMMAND_LINE) is None


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"permission": "owner"}, "permission"),
        ({"allowed_modules": frozenset({"owls", "notes"})}, "allowed_modules"),
        ({"allowed_modules": "*"}, "allowed_modules"),
        ({"allowed_modules": None}, "allowed_modules"),  # all that the permission allows
        ({"acts_for_others": True}, "acts_for_others"),
        ({"user_id": "bob"}, "user_id"),
        ({"expires_at": 101}, "expires_at"),
        ({"expires_at": None}, "expires_at"),
        ({"requests_per_second": 6}, "requests_per_second"),
        ({"requests_per_second": None}, "requests_per_second"),
        ({"streams": 3}, "streams"),
        ({"streams": None}, "streams"),
    ],
)
def test_a_refusal_names_what_is_too_much(more: dict[str, Any], named: str) -> None:
    """In one sentence."""
    has = KeyDraft(
        user_id="ada",
        permission="admin",
        allowed_modules=frozenset({"owls"}),
        role="admin",
        expires_at=100,
        requests_per_second=5,
        streams=2,
    )
    refusal = refusal_of(has.model_copy(update=more), Identity.of_key(made(has)).key_maker())

    assert refusal is not None
    assert refusal.startswith(f"{named} must be")
    assert "key a" in refusal


def test_an_operators_key_makes_none() -> None:
    """However little the new one may."""
    operator = KeyDraft(user_id="ada", permission="owner", role="operator", acts_for_others=True)

    assert refusal_of(KeyDraft(user_id="ada"), Identity.of_key(made(operator)).key_maker()) is not None


def test_a_key_looks_like_one() -> None:
    """Scanners find it by a pattern; no two are alike, and the secret has 256 bits at least."""
    texts = {new_key_text().text for _ in range(100)}

    assert len(texts) == 100
    assert all(re.fullmatch(r"tfk_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}", text) for text in texts)
    assert 43 * math.log2(62) >= 256


def test_a_key_is_read_as_it_was_made() -> None:
    """And its repr, which logs show, has no secret."""
    made = new_key_text()

    assert read_key_text(made.text) == made
    assert made.text not in repr(made)
    assert made.has_digest(made.digest)
    assert not new_key_text().has_digest(made.digest)


@given(place=st.integers(0, 65), digit=st.sampled_from("0Aaz9_ é"))
def test_a_mistyped_key_is_none(place: int, digit: str) -> None:
    """The checksum tells, without a question to a store."""
    text = new_key_text().text
    other = text[:place] + digit + text[place + 1 :]

    assert (read_key_text(other) is None) == (other != text)


@given(st.text(max_size=80))
def test_any_other_text_is_none(text: str) -> None:
    """Whatever is in it."""
    assert read_key_text(text) is None
