"""Seals what the ledger keeps of an approved call, and verifies what a claim has consumed: that people have approved this very call."""

from toolfleet_registry.contracts.calls import ApprovedCall
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.messages import json_text


def approval_seal(settings: Settings) -> TextSeal:
    """Return the seal of approvals. Raises `SettingsError` without the libraries."""
    return TextSeal(settings.signing_key, purpose="approval", old_keys=settings.signing_keys_old)


def is_approved(claim: Claim, settings: Settings) -> bool:
    """Return whether the ledger has a genuine approval of the call; for a call that needs none, whether it has none."""
    terms = claim.call.approval
    if terms is None or not claim.approved:
        return terms is None and not claim.approved
    try:
        found = json_text.load(ApprovedCall, approval_seal(settings).read(claim.approved))
    except (MessageRefused, ValueError):
        return False
    return (found.call_id, found.binding) == (claim.call.call_id, terms.binding)
