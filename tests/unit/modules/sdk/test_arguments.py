"""Arguments that a tool cannot take: what is told of them."""

from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

from toolfleet.sdk import Module


class Password(BaseModel):
    kind: Literal["password"]
    text: str


class Card(BaseModel):
    kind: Literal["card"]
    number: int


def _broken(value: int) -> int:
    raise KeyError(f"/secret/path/{value}")


async def test_a_wrong_kind_is_told_without_the_value() -> None:
    """The value may be the secret, in the wrong place."""
    owls = Module("owls", key="")

    @owls.tool(sensitive=("proof",))
    async def enter(proof: Annotated[Password | Card, Field(discriminator="kind")]) -> None: ...

    async with owls.client() as client:
        error = str((await client.call("enter", proof={"kind": "hunter2"})).error)
    assert error == "Invalid arguments for owls.enter: proof: 'kind' should be one of 'password', 'card'."


async def test_a_validator_that_breaks_is_a_failed_call(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing has happened, which the fleet is told; the exception's text is in the log only."""
    owls = Module("owls", key="")

    @owls.tool(effect="once")
    async def count(day: Annotated[int, AfterValidator(_broken)]) -> None: ...

    async with owls.client() as client:
        result = await client.call("count", day=7)
    assert (result.status, result.success, result.effect_state) == (200, False, "none")
    assert "failed over its arguments inside the module (KeyError)" in str(result.error)
    assert "secret" not in str(result.error)
    assert "/secret/path/7" in caplog.text
