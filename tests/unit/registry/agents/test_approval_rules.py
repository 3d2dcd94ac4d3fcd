"""An approval is bound to what people have seen: another call, tool or set of rules needs another one."""

from typing import Any

import pytest

from support.published_call import published
from toolfleet_registry.agents.profile_rules import approval_fault, terms_of_approval
from toolfleet_registry.contracts import Caller, ToolDefinition
from toolfleet_registry.contracts.calls import ApprovalRule

PAY = ToolDefinition(name="bank.pay", description="Pay.")
RULES = (ApprovalRule(digest="a", permission="admin"), ApprovalRule(digest="b", users=frozenset({"ada"})))
DAVE = Caller(user_id="dave", permission="user", agent="clerk")
ASKED = published("bank.pay", arguments={"to": "eve", "cents": 5}, caller=DAVE, user_id="dave")
APPROVED = ASKED.model_copy(update={"approval": terms_of_approval(ASKED, PAY, RULES)})


@pytest.mark.parametrize(
    "changed",
    [
        {"tool_name": "bank.refund"},
        {"arguments": {"to": "eve", "cents": 500}},
        {"user_id": "eve"},
        {"caller": DAVE.model_copy(update={"user_id": "eve"})},
        {"caller": DAVE.model_copy(update={"permission": "admin"})},
        {"caller": DAVE.model_copy(update={"agent": "boss"})},
        {"caller": DAVE.model_copy(update={"allowed_modules": frozenset({"bank"})})},
    ],
    ids=["tool", "arguments", "user", "caller", "permission", "agent", "modules"],
)
def test_an_approval_is_for_this_very_call(changed: dict[str, Any]) -> None:
    """Whatever of the call is changed after people have seen it."""
    fault = approval_fault(APPROVED.model_copy(update=changed), PAY, RULES)

    assert fault == "changed: the call is another one than was approved"


def test_an_approval_is_for_this_very_tool_and_for_the_rules_that_hold() -> None:
    """The same call is taken, also under fewer rules; a changed tool and a new rule ask again."""
    other, more = PAY.model_copy(update={"description": "Pay twice."}), ApprovalRule(digest="c", permission="owner")

    assert approval_fault(APPROVED, PAY, RULES) is None
    assert approval_fault(APPROVED, PAY, RULES[:1]) is None
    assert approval_fault(APPROVED, other, RULES) == "changed: the tool is another one than was approved"
    assert approval_fault(APPROVED, PAY, (*RULES, more)) == "changed: 1 more rules ask for an approval now"
    assert approval_fault(ASKED, PAY, RULES) == "a person has to approve it first"
    assert approval_fault(ASKED, PAY, ()) is None
