"""Reads what the fleet sends to a URL of `TOOLFLEET_REGISTRY_WEBHOOKS`: who sent it, and what has happened to which tool."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from toolfleet_registry.errors import WebhookRefused
from toolfleet_registry.manifests.specs import RegistryEvent
from toolfleet_tasks.webhooks.signed_requests import SignedRequests


class RegistryReceiver:
    """Knows the fleet's `registry_webhooks_secret`, or several while it is changed. Raises `ValueError` for one that no fleet has."""

    def __init__(self, secret: str | Sequence[str]) -> None:
        self._requests = SignedRequests(secret, WebhookRefused)

    def read(self, headers: Mapping[str, str], body: bytes) -> RegistryEvent:
        """The event, if the fleet has sent it. Raises `WebhookRefused`: answer 401.

        An event may come again, with the same `id`, and after a later one: ids grow, so keep the last one of each tool.
        """
        webhook_id = self._requests.verify(headers, body)
        try:
            event = _Payload.model_validate_json(body, extra="ignore").data
        except ValueError:
            raise WebhookRefused("The event cannot be read.") from None
        if event.id != webhook_id:
            raise WebhookRefused("The event has another id than its message.")
        return event


class _Payload(BaseModel):
    """A webhook's payload.

    Its `type` and `timestamp`, which Standard Webhooks recommends, repeat the event's kind and time.
    """

    data: RegistryEvent
