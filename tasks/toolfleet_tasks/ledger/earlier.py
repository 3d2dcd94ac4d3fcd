"""Reads what the ledger has of a call's earlier attempts, as far as its workers have signed it."""

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.accepted_attempt import AcceptedAttempt
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signatures import Signatures
from toolfleet_tasks.results.verifier import Verifier


class EarlierAttempts:
    """Signs and verifies what attempts came to, and under which handle modules go on with them."""

    def __init__(self, settings: Settings, verifier: Verifier) -> None:
        self._signatures = Signatures(settings, "attempt")
        self._verifier = verifier

    def signature(self, call_id: str, text: str) -> str:
        """Return the signature of an attempt's text; "" if the fleet does not sign."""
        return self._signatures.of(call_id, text)

    def signed(self, call_id: str, attempt: AcceptedAttempt) -> str:
        """An accepted attempt as it is kept."""
        return self.signed_text(call_id, attempt.written())

    def signed_text(self, call_id: str, text: str) -> str:
        """A JSON object about an attempt as it is kept."""
        return f"{self.signature(call_id, text)} {text}".lstrip()

    async def last(self, call_id: str, found: bytes) -> ToolResult | None:
        """Return the result of the last ended attempt; `None` if it is unsigned."""
        text = await self.believed(call_id, found)
        return json_text.load(ToolResult, text) if text else None

    async def accepted(self, call_id: str, found: bytes) -> AcceptedAttempt | None:
        """Return the attempt that the module continues; `None` if it is unsigned."""
        text = await self.believed(call_id, found)
        return AcceptedAttempt.read(text) if text else None

    async def believed(self, call_id: str, found: bytes) -> str:
        """The text, which may have a signature and a space before it; "" if it is not believed."""
        signature, _, text = found.decode(errors="replace").partition(" ")
        if found.startswith(b"{"):
            signature, text = "", found.decode()
        if not text or not await self._verifier.believes(call_id, "attempt", text, signature or None):
            return ""
        return text
