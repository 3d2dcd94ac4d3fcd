"""Verifies that a request was signed by the fleet as Standard Webhooks has it, in these five minutes. Needs `toolfleet[webhooks]`."""

from collections.abc import Mapping, Sequence

from toolfleet_registry.config.webhook_settings import secret_fault
from toolfleet_registry.errors import WebhookRefused

try:
    from standardwebhooks import Webhook, WebhookVerificationError
except ImportError as exc:
    raise ImportError("Webhooks need 'standardwebhooks': pip install 'toolfleet[webhooks]'.") from exc

_MOST_BYTES = 1_000_000  # of a body; a wake-up has a quarter at most


class SignedRequests:
    """Knows one secret, or several while it is changed. Raises `ValueError` for one that no fleet has.

    `refusal` is what `verify` raises.
    """

    def __init__(self, secret: str | Sequence[str], refusal: type[WebhookRefused]) -> None:
        secrets = [secret] if isinstance(secret, str) else list(secret)
        if not secrets:
            raise ValueError("a receiver needs a secret, or anybody could send to it")
        for one in secrets:
            if (fault := secret_fault(one)) is not None:
                raise ValueError(f"a receiver's secret {fault}")
        self._webhooks = [Webhook(one) for one in secrets]
        self._refusal = refusal

    def verify(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """The request's `webhook-id`, if the fleet has sent it. Raises the refusal."""
        if len(body) > _MOST_BYTES:
            raise self._refusal("The request is too large.")
        known, is_timely = {name.lower(): value for name, value in headers.items()}, True
        for webhook in self._webhooks:
            try:
                webhook.verify(body, known, json_parse=False)
            except WebhookVerificationError as exc:
                is_timely = is_timely and "timestamp" not in str(exc)
            except ValueError:  # the library's own, for headers that are none
                continue
            else:
                return known.get("webhook-id")
        if not is_timely:
            raise self._refusal("The request was not sent in these five minutes; or a clock is wrong.")
        raise self._refusal("The request is not signed with the secret of this receiver.")
