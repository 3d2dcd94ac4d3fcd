"""Verifies that a request was signed with one of a job's secrets, as Standard Webhooks has it, in these five minutes."""

from collections.abc import Mapping, Sequence

from standardwebhooks import Webhook, WebhookVerificationError

from toolfleet_gateway.http.problems import Problem, invalid_request, not_found

_NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")
_LONGEST_ID = 256  # characters
_LONGEST_SIGNATURE = 2_000
# Signs nothing: a request for a job that there is not takes as long as one with a wrong signature.
_NOBODYS = "whsec_" + "A" * 32


def verified_delivery(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> str:
    """The id of a request that is signed with one of `secrets`. Raises `Problem`.

    Without secrets it is what it is with a wrong signature: nobody finds out which jobs there are.
    """
    said = {name: headers.get(name, "") for name in _NAMES}
    if not all(said.values()):
        raise invalid_request(f"A hook's request has the headers {', '.join(_NAMES)}.")
    if len(said["webhook-id"]) > _LONGEST_ID or len(said["webhook-signature"]) > _LONGEST_SIGNATURE:
        raise invalid_request(
            f"A webhook-id has {_LONGEST_ID} characters at most, and signatures {_LONGEST_SIGNATURE}."
        )
    if not any(_is_signed(secret, said, body) for secret in secrets or [_NOBODYS]):
        raise absent()
    return said["webhook-id"]


def absent() -> Problem:
    """There is no such job, it has no hook, or another secret: they look alike."""
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


_MOST_SIGNATURES = 10
