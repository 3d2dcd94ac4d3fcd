"""The import contracts hold without exceptions, and name every module."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINTER: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: list[dict[str, Any]] = LINTER["contracts"]
# Each other option of import-linter allows an import that the contract forbids.
STRICT = {
    "layers": {"name", "type", "layers", "containers"},
    "forbidden": {"name", "type", "source_modules", "forbidden_modules", "allow_indirect_imports"},
    "independence": {"name", "type", "modules"},
    "protected": {"name", "type", "protected_modules", "allowed_importers"},
}


def test_no_contract_has_an_exception() -> None:
    """Not one import is ignored, not even those for type checkers, and an indirect import counts as a direct one."""
    assert set(LINTER) == {"root_packages", "include_external_packages", "contracts"}
    assert [each["name"] for each in CONTRACTS if not set(each) <= STRICT.get(each["type"], set())] == []
    assert [each["name"] for each in CONTRACTS if each.get("allow_indirect_imports", False)] == []


def test_no_contract_declares_a_circle() -> None:
    """Modules of one layer are independent: `a : b` would let them import one another, and `(a)` need not be there."""
    layers = [layer for each in CONTRACTS for layer in each.get("layers", ())]

    assert len(layers) > 100
    assert [layer for layer in layers if set(layer) & set(":()")] == []


def test_every_module_of_a_room_is_in_a_layer() -> None:
    """What no contract names may import anything; a folder with one module needs none."""
    named = {
        container: {module.strip() for layer in each["layers"] for module in layer.split("|")}
        for each in CONTRACTS
        for container in each.get("containers", ())
    }
    found = {
        ".".join(path.parent.relative_to(ROOT).parts[1:]): modules
        for room in LINTER["root_packages"]
        for path in ROOT.glob(f"*/{room}/**/__init__.py")
        if room != "toolfleet" and len(modules := _modules(path.parent)) > 1
    }

    assert {folder: sorted(modules ^ named.get(folder, set())) for folder, modules in found.items()} == {
        folder: [] for folder in found
    }


def _modules(folder: Path) -> set[str]:
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}
