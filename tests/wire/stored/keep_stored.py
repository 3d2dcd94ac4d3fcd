"""Writes fixtures of what today's version stores, behind those that are there: what older versions have written stays.

`PYTHONPATH=tests python -m wire.stored.keep_stored`
"""

import json

from wire.stored.all_forms import FORMS
from wire.stored.forms import FIXTURES, StoredForm


def keep(form: StoredForm) -> None:
    """Add what is written of each sample, unless the last fixture is just that."""
    kept = form.kept()
    for mode in form.modes:
        for name, value in form.samples.items():
            texts = kept.setdefault(mode, {}).setdefault(name, [])
            text = form.write(value, mode)
            if texts[-1:] != [text]:
                texts.append(text)
    form.path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    for each in FORMS:
        keep(each)
