"""Makes a reply of a tool's question, if its caller can be asked."""

from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.failures import InputRequired


def question_reply(tool_name: str, context: Context, asked: InputRequired) -> Reply:
    """Return the question, or the failure of a call whose caller takes none."""
    if context.takes_input:
        return Reply.question(tool_name, asked.requests, asked.state, effect_state=asked.effect_state)
    text = f"{tool_name} asks for more input, and whoever called it cannot be asked."
    return Reply.failure(tool_name, text, effect_state=asked.effect_state)
