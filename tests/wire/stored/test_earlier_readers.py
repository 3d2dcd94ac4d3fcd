"""What today's version stores, read by the code of an earlier one: it takes what has nothing new, and refuses the rest as a whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.versions.releases import NoHistory, Release, unpack, versions
from support.waiting import PATIENCE_SECONDS
from wire.stored.samples.all_forms import FORMS
from wire.test_fixtures import NAMED_ANEW

PROGRAM = Path(__file__).with_name("reader_program.py")
HAD = {"job", "job position", "job end", "call after a job", "call"}
"""The forms that the first version has as well."""


@pytest.fixture(scope="module", params=versions(), ids=lambda version: f"wire {version.number}")
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Its code, with today's packages: messages need no more than pydantic."""
    folder = tmp_path_factory.mktemp("earlier")
    try:
        unpack(request.param, folder)
    except NoHistory as exc:
        pytest.skip(f"this copy has no commit {request.param.commit[:7]} ({exc})")
    return Release(folder, sys.executable)


def test_an_earlier_version_reads_what_has_nothing_new(code: Release) -> None:
    """A text that says no version is read; one that says a later one is not read wrongly, but refused."""
    names = {later: earlier for earlier, later in NAMED_ANEW.items()}
    asked = list[tuple[str, str]]()
    for form in FORMS:
        for value in form.samples.values() if form.name in HAD else ():
            kind = type(value).__name__
            asked.append((names.get(kind, kind), form.content(value)))
    done = subprocess.run(
        [code.python, PROGRAM],
        input=json.dumps(asked),
        env={**os.environ, **code.env},
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * PATIENCE_SECONDS,
    )

    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout) == ["v" not in json.loads(text) for _, text in asked]
    assert {"v" in json.loads(text) for _, text in asked} == {True, False}
