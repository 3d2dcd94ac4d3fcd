"""An issuer, and what verifies its tokens."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from support.servers.toy_issuer import AUDIENCE, ToyIssuer, toy_issuer
from toolfleet_gateway.auth.tokens import IssuerKeys, TokenVerifier
from toolfleet_registry.system import fleet_clock

ALGORITHMS = frozenset({"RS256", "ES256", "EdDSA"})


@pytest.fixture
async def issuer() -> AsyncIterator[ToyIssuer]:
    async with toy_issuer() as issuer:
        yield issuer


@pytest.fixture
async def keys(issuer: ToyIssuer) -> AsyncIterator[IssuerKeys]:
    keys = IssuerKeys(issuer.url, jwks_url=None, algorithms=ALGORITHMS)
    yield keys
    await keys.aclose()


@pytest.fixture
def verifier(issuer: ToyIssuer, keys: IssuerKeys) -> TokenVerifier:
    return TokenVerifier(keys, issuer.url, frozenset({AUDIENCE, "other"}), ALGORITHMS)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """By how many `seconds` the clock of pauses is ahead."""
    ahead, real = SimpleNamespace(seconds=0.0), fleet_clock.suspend_aware
    monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: real() + ahead.seconds)
    return ahead
