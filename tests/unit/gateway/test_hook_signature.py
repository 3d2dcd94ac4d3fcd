"""A hook's request counts if it is signed with one of the hook's secrets, and nowhere else."""

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from toolfleet_gateway.hooks import signed_delivery

OWN, OTHER = (f"whsec_{b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
ZEROS = "whsec_" + "A" * 32
"""What anybody can think of."""
BODY = b'{"done": true}'


@pytest.mark.parametrize(
    ("secrets", "signer", "is_good"),
    [
        ((OWN,), OWN, True),
        ((OTHER, OWN), OWN, True),
        ((OTHER,), OWN, False),
        ((OWN,), ZEROS, False),
        ((), OWN, False),
        ((), ZEROS, False),
    ],
    ids=["its secret", "one of two", "another", "zeros", "no hook", "no hook and zeros"],
)
def test_a_request_counts_by_the_hooks_own_secrets(secrets: tuple[str, ...], signer: str, is_good: bool) -> None:
    """A job without a hook takes none, whoever has signed it."""
    at = datetime.now(UTC)
    signature = Webhook(signer).sign("d-1", at, BODY.decode())
    headers = {"webhook-id": "d-1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}

    assert signed_delivery(secrets, headers, BODY) == ("d-1", signer if is_good else None)
