"""Writes fixtures of what today's version stores and answers, behind those that are there: what older ones have written stays.

`PYTHONPATH=tests python -m wire.stored.keep_stored`
"""

import asyncio
import json
from collections.abc import Mapping

from wire.keep import MODES
from wire.stored import contract_module, worker_questions
from wire.stored.samples.all_forms import APART, FORMS, apart, kept_apart
from wire.stored.samples.forms import FIXTURES, StoredForm

CONTRACT = FIXTURES / "module_contract.json"


def keep(form: StoredForm) -> None:
    """Add what is written of each sample, unless the last fixture is just that."""
    kept = form.kept()
    for mode in form.modes:
        for name, value in form.samples.items():
            _add(kept.setdefault(mode, {}).setdefault(name, []), form.write(value, mode))
    form.path.write_text(json.dumps(kept, indent=1) + "\n")


def keep_apart() -> None:
    """The same of calls that are sealed with their arguments apart."""
    kept = kept_apart()
    for mode in MODES:
        for name, text in apart(mode).items():
            _add(kept.setdefault(mode, {}).setdefault(name, []), str(text))
    APART.write_text(json.dumps(kept, indent=1) + "\n")


def keep_contract() -> None:
    """The same of a module's answers, and of the questions that workers put to it."""
    kept = kept_contract()
    written: Mapping[str, Mapping[str, str]] = {
        "answers": asyncio.run(contract_module.answers()),
        "questions": worker_questions.questions(),
    }
    for kind, texts in written.items():
        for name, text in texts.items():
            _add(kept.setdefault(kind, {}).setdefault(name, []), text)
    CONTRACT.write_text(json.dumps(kept, indent=1) + "\n")


def kept_contract() -> dict[str, dict[str, list[str]]]:
    """The fixtures of the contract: texts by name, the oldest first, of `answers` and `questions`."""
    return json.loads(CONTRACT.read_text()) if CONTRACT.exists() else {}


def _add(texts: list[str], text: str) -> None:
    if texts[-1:] != [text]:
        texts.append(text)


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    for each in FORMS:
        keep(each)
    keep_apart()
    keep_contract()
