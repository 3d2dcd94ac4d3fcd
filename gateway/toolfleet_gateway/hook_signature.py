"""Verifies that a request was signed with one of a few secrets, as Standard Webhooks has it, in these five minutes."""

from collections.abc import Mapping, Sequence

from standardwebhooks import Webhook, WebhookVerificationError

from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import HeaderParameter

SIGNED_HEADERS = (
    HeaderParameter("webhook-id", "The request's id, the same in each repeat.", is_required=True),
    HeaderParameter(
        "webhook-timestamp", "When it was signed: seconds since the epoch.", pattern="^[0-9]{1,12}$", is_required=True
    ),
    HeaderParameter("webhook-signature", "`v1,` and base64; several with spaces between.", 2_000, is_required=True),
)
"""What such a request has."""

_NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")
_LONGEST_ID = 256  # characters
_LONGEST_SIGNATURE = 2_000
_MOST_SIGNATURES = 10
# Signs nothing: a request for a job that there is not takes as long as one with a wrong signature.
_NOBODYS = "whsec_" + "A" * 32


def verified_delivery(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> str:
    """Return the id of a request that is signed with one of `secrets`. Raises `Problem`.

    Without secrets the answer is that of a wrong signature: a sender cannot find out which jobs there are.
    """
    delivery, secret = signed_delivery(secrets, headers, body)
    if secret is None:
        raise absent()
    return delivery


def signed_delivery(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> tuple[str, str | None]:
    """The id that a request says, and which of `secrets` it is signed with, if any. Raises `Problem` for one that is not as it should be."""
    said = {name: headers.get(name, "") for name in _NAMES}
    if not all(said.values()):
        raise invalid_request(f"A hook's request has the headers {', '.join(_NAMES)}.")
    if len(said["webhook-id"]) > _LONGEST_ID or len(said["webhook-signature"]) > _LONGEST_SIGNATURE:
        raise invalid_request(
            f"A webhook-id has {_LONGEST_ID} characters at most, and signatures {_LONGEST_SIGNATURE}."
        )
    found = next((secret for secret in secrets or [_NOBODYS] if _is_signed(secret, said, body)), None)
    return said["webhook-id"], found if secrets else None


def absent() -> Problem:
    """Return the problem of a missing job, of one without a hook, or with another secret: they look alike."""
    return not_found("There is no such job with a hook, or the request is not signed with its secret.")


def _is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    webhook = Webhook(secret)
    # One that is malformed must not hide those behind it.
    for signature in headers["webhook-signature"].split()[:_MOST_SIGNATURES]:
        try:
            webhook.verify(body, {**headers, "webhook-signature": signature}, json_parse=False)
        except WebhookVerificationError as exc:
            if "timestamp" in str(exc) or "Headers" in str(exc):
                raise invalid_request(
                    "The webhook-timestamp is not within five minutes of the gateway's clock: sign the request anew."
                ) from None
        except ValueError:  # no base64, no comma, no UTF-8
            continue
        else:
            return True
    return False
