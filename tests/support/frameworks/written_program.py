"""A program of a document, imported as a reader's own file."""

import importlib.util
from pathlib import Path
from types import ModuleType


def import_program(text: str, folder: Path) -> ModuleType:
    """Write the text into a file of the folder and import it."""
    path = folder / "program.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
