"""What must hold after a run, of the intentions of clients: done once at most, and told the same to all who ask."""

from collections.abc import Iterator, Mapping, Sequence

from chaos.checks.call_checks import Violation
from chaos.gateways.clients import Intention
from chaos.records.journal import Journal
from toolfleet_registry.contracts import ToolResult


def check_intentions(wanted: Sequence[Intention], journal: Journal) -> Mapping[str, list[Violation]]:
    """Every check by its name, with what it found."""
    checks = (_answered, _once, _one_result, _honest)
    found = {(check.__doc__ or "").rstrip("."): [*check(wanted, journal)] for check in checks}
    return {name: [Violation(name, text, None, ref) for text, ref in facts] for name, facts in found.items()}


_Fact = tuple[str, str]


def _answered(wanted: Sequence[Intention], _: Journal) -> Iterator[_Fact]:
    """Every client got its result, and no answer but that or to come again."""
    for each in wanted:
        yield from ((f"{each.way} {each.ref}: {text}", each.ref) for text in each.trouble)
        if not each.told:
            yield f"{each.way} {each.ref}: no result", each.ref


def _once(wanted: Sequence[Intention], journal: Journal) -> Iterator[_Fact]:
    """The modules' journal shows no call twice."""
    for each in wanted:
        done = journal.effects_of_ref.get(each.ref, [])
        if len(done) > 1:
            yield f"{each.way} {each.ref}: executed {len(done)} times, as {[one.call_id for one in done]}", each.ref


def _one_result(wanted: Sequence[Intention], _: Journal) -> Iterator[_Fact]:
    """Every repeat, at any gateway, brought the first result, byte for byte; the key is free after one with the effect none."""
    for each in wanted:
        told = {text: ToolResult.model_validate_json(text) for text in each.told}
        # Over MCP no result names its call: one with the effect none is taken for that of a call of its own.
        calls = {
            result.audit.call_id or (text if result.effect_state == "none" else "") for text, result in told.items()
        }
        if len(told) > len(calls) or sum(result.effect_state != "none" for result in told.values()) > 1:
            yield f"{each.way} {each.ref}: {' | '.join(dict.fromkeys(each.told))}", each.ref


def _honest(wanted: Sequence[Intention], journal: Journal) -> Iterator[_Fact]:
    """A success brings what its one execution gave, and what was said not to have happened has not."""
    for each in wanted:
        done = journal.effects_of_ref.get(each.ref, [])
        for text in dict.fromkeys(each.told):
            result = ToolResult.model_validate_json(text)
            if result.success and result.result not in [one.reply["result"] for one in done]:
                yield f"{each.ref}: brought {result.result}, executed {len(done)} times", each.ref
            own = [one for one in done if one.call_id == result.audit.call_id]
            if (result.effect_state == "none" and own) or (result.effect_state == "done" and not done):
                yield f"{each.ref}: effect {result.effect_state}, executed {len(done)} times: {text}", each.ref
