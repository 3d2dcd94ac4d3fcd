"""Sends events of the registry to the receivers that the settings name, over connections of each receiver's own."""

from toolfleet_registry.settings import Settings
from toolfleet_tasks.wakeups.sender import WEBHOOK_SECONDS, DeliveryAnswer, WebhookSender
from toolfleet_tasks.wakeups.webhook_events import parts_of, receiver_of, sent_body


class WebhookReceivers:
    """The `registry_webhooks` of one process. Belongs to the loop of its first try."""

    def __init__(self, settings: Settings) -> None:
        self._urls = {receiver_of(url): url for url in settings.registry_webhooks}
        self._secret = settings.registry_webhooks_secret or ""
        self._senders = dict[str, WebhookSender]()

    async def send(self, wake_id: str, kept: str) -> DeliveryAnswer:
        """Try once to send what the outbox keeps under this id. Raises nothing but a cancellation."""
        event_id, receiver = parts_of(wake_id)
        if (
            receiver not in self._urls
        ):  # taken away, perhaps to come back; or this process has older settings than others
            return DeliveryAnswer(
                accepted=False, refused=True, reason="No URL of TOOLFLEET_REGISTRY_WEBHOOKS is its receiver."
            )
        try:
            body = sent_body(kept)
        except (ValueError, RecursionError):
            return DeliveryAnswer(accepted=False, is_final=True, reason="The event cannot be read.")
        return await self._sender(receiver).send(event_id, body)

    async def aclose(self) -> None:
        """Close all connections."""
        for sender in self._senders.values():
            await sender.aclose()

    def _sender(self, receiver: str) -> WebhookSender:
        if receiver not in self._senders:
            url = self._urls[receiver]
            self._senders[receiver] = WebhookSender(url, self._secret, timeout_seconds=WEBHOOK_SECONDS)
        return self._senders[receiver]
