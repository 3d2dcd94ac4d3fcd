"""The code behind a function: what makes it another one, and what is there without a file."""

import functools
import importlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from toolfleet_registry.local.local_function import code_digest

OWL = "def owl() -> int:\n    return 1\n"


@pytest.fixture(autouse=True)
def _imports_from_here(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From files: what was compiled of one within the same second would be taken for it."""
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def imported(name: str) -> Any:
    importlib.invalidate_caches()
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def test_it_is_that_of_the_file(elsewhere: Path) -> None:
    """The same wherever it lies; another line in it is another code."""
    for name, text in (("digest_a", OWL), ("digest_b", OWL), ("digest_c", OWL.replace("1", "2"))):
        (elsewhere / f"{name}.py").write_text(text)
    one, two, other = (code_digest(imported(f"digest_{letter}").owl) for letter in "abc")

    assert one == two != other
    assert one.startswith("sha256:")


def test_a_file_that_has_changed_since_its_import_is_not_what_runs(elsewhere: Path) -> None:
    """The code that runs is neither the one from before nor the one that is written there now."""
    file = elsewhere / "digest_late.py"
    file.write_text(OWL)
    owl = imported("digest_late").owl
    before = code_digest(owl)
    file.write_text(OWL.replace("1", "2"))
    late = code_digest(owl)
    now = code_digest(imported("digest_late").owl)

    assert len({before, late, now}) == 3


def test_it_is_there_without_a_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an archive it is that of the file; of what was never written, of what runs."""
    (elsewhere / "digest_plain.py").write_text(OWL)
    with zipfile.ZipFile(elsewhere / "owls.zip", "w") as archive:
        archive.writestr("digest_packed.py", OWL)
    monkeypatch.syspath_prepend(str(elsewhere / "owls.zip"))
    names: dict[str, Any] = {}
    exec(OWL, names)  # noqa: S102 - as a console does
    typed = code_digest(names["owl"])

    assert code_digest(imported("digest_packed").owl) == code_digest(imported("digest_plain").owl)
    exec(OWL.replace("1", "2"), names)  # noqa: S102 - as above
    assert code_digest(names["owl"]) != typed


def test_what_is_wrapped_around_a_function_counts(elsewhere: Path) -> None:
    """A decorator of another file changes what is run."""
    (elsewhere / "digest_wrapped.py").write_text(OWL)
    owl = imported("digest_wrapped").owl

    @functools.wraps(owl)
    def wrapper() -> int:
        return int(owl()) + 1

    assert code_digest(wrapper) != code_digest(owl)
