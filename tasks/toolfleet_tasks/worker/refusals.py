"""Refuses a call whose tool nobody knows, that nobody has approved, or that has reached a limit: its agent may not have looked, or not known of it."""

from collections.abc import Mapping

from toolfleet_registry.contracts import Terms, ToolResult, decisions
from toolfleet_registry.policy.limits import strictest
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission.limits import Within, unnamed
from toolfleet_tasks.ledger.approved import is_approved
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages.approval_results import unapproved


async def refusal_of(
    ledger: Ledger, claim: Claim, known: Terms | ToolResult | None, decided: Mapping[str, str], settings: Settings
) -> ToolResult | None:
    """Return why a claimed call is not begun, by what is `known` of its tool; `None` if it may be. `decided` has what was decided of it."""
    if isinstance(known, ToolResult):
        decisions.note("permission", "not_known")
        return known
    if known is not None and known.requires_gate and "gate" not in decided:
        decisions.note("gate", "missing")
    if claim.call.approval is not None:
        holds = is_approved(claim, settings)
        decisions.note("approval", "approved" if holds else "missing")
        if not holds:
            return unapproved(claim.call.tool_name)
    terms = strictest(claim.call.terms, known)
    if terms is None:
        return None
    return unnamed(claim.call.tool_name, terms, Within.of(claim.call)) or await ledger.take(claim, terms)
