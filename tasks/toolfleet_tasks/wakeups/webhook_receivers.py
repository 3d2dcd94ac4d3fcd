"""Sends events of the registry, and notices of approvals, to the receivers that the settings name, over connections of each receiver's own."""

from toolfleet_registry.config.approvals.channel_secrets import channel_secret
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.wakeups.sender import WEBHOOK_SECONDS, DeliveryAnswer, WebhookSender
from toolfleet_tasks.wakeups.webhook_events import approval_receiver_of, parts_of, receiver_of, sent_body


class WebhookReceivers:
    """The `registry_webhooks` of one process, and the webhooks of its `approvals`. Belongs to the loop of its first try."""

    def __init__(self, settings: Settings) -> None:
        self._urls = {receiver_of(url): url for url in settings.registry_webhooks}
        self._secret = settings.registry_webhooks_secret or ""
        self._approvals = {approval_receiver_of(each.url): each for each in settings.approvals.webhooks}
        self._sources = settings.secrets
        self._senders = dict[str, WebhookSender]()

    async def send(self, wake_id: str, kept: str) -> DeliveryAnswer:
        """Try once to send what the outbox keeps under this id. Raises nothing but a cancellation."""
        event_id, receiver = parts_of(wake_id)
        if receiver not in self._urls and receiver not in self._approvals:
            # Taken away, perhaps to come back; or this process has older settings than others.
            reason = "No URL of TOOLFLEET_REGISTRY_WEBHOOKS is its receiver, nor a webhook of TOOLFLEET_APPROVALS."
            return DeliveryAnswer(accepted=False, refused=True, reason=reason)
        try:
            body = sent_body(kept)
        except (ValueError, RecursionError):
            return DeliveryAnswer(accepted=False, is_final=True, reason="The event cannot be read.")
        try:
            sender = self._sender(receiver)
        except SettingsError as exc:  # it may be there in a moment: it is tried again
            return DeliveryAnswer(accepted=False, refused=True, reason=str(exc))
        return await sender.send(event_id, body)

    async def aclose(self) -> None:
        """Close all connections."""
        for sender in self._senders.values():
            await sender.aclose()

    def _sender(self, receiver: str) -> WebhookSender:
        """Raises `SettingsError` for a secret that is not there."""
        if receiver not in self._senders:
            url, secret = self._urls.get(receiver), self._secret
            if url is None:
                webhook = self._approvals[receiver]
                url, secret = webhook.url, channel_secret(webhook.secret, self._sources)
            self._senders[receiver] = WebhookSender(url, secret, timeout_seconds=WEBHOOK_SECONDS)
        return self._senders[receiver]
