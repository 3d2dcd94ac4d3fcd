"""Refuses calls in the worker, around each attempt."""

from toolfleet import ToolResult
from toolfleet.middleware import Attempt, Outcome, ProceedWithCall, PublishedCall


class Redactor:
    """Refuses calls with certain words in them."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    async def __call__(self, call: PublishedCall, proceed: ProceedWithCall) -> Attempt:
        """Refuse the call, or run it."""
        if any(word in str(call.arguments) for word in self.words):
            refusal = ToolResult.refused(call.tool_name, "permission_denied", "There is a word that must not pass.")
            return Attempt(Outcome.PERMANENT, refusal)
        return await proceed(call)
