"""A module that asks its caller before it goes on."""

from toolfleet.sdk import Context, InputRequired, Module

module = Module("post", description="Sends letters.")


@module.tool(effect="once")
async def send(to: list[str], context: Context) -> str:
    """Send a letter to each address, once the caller has agreed."""
    if context.inputs is None:
        schema = {"type": "object", "properties": {"agrees": {"type": "boolean"}}}
        form = {"message": f"Send {len(to)} letters?", "requestedSchema": schema}
        request = {"method": "elicitation/create", "params": form}
        raise InputRequired({"ok": request}, state=str(len(to)), effect_state="none")
    answer = context.inputs.responses["ok"]
    if answer.get("action") != "accept" or not answer["content"]["agrees"]:
        return "Nobody wanted that."
    return f"{context.inputs.state} letters sent."
