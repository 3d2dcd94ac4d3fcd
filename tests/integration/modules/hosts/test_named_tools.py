"""Tools that a host names by dotted paths: imported from namespaces that it trusts, and from no other."""

from pathlib import Path

import pytest

from support.hosts.tool_folder import GREET, hosted
from toolfleet_modules.hosts.folder.folder_host import FolderHost
from toolfleet_modules.hosts.folder.generation import FolderOptions
from toolfleet_modules.sdk.client import ModuleClient

pytestmark = pytest.mark.asyncio

TOOLS = '''
from pathlib import Path
from toolfleet.sdk import tool

Path(__file__).with_suffix(".imported").touch()

@tool(effect="read")
def read_file(path: str) -> str:
    """Read a file."""
    return f"read {path}"

async def plain(n: int) -> int:
    """Add one."""
    return n + 1

NOTHING = 3
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """What may be anywhere on a host's Python path."""
    for name in ("tools", "toolsmith", "broken"):
        package = tmp_path / "library" / "acme"
        package.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(TOOLS if name != "broken" else "import os\nos._exit(3)\n")
    return tmp_path / "library"


async def test_a_function_of_a_trusted_namespace_is_a_tool(tmp_path: Path, library: Path) -> None:
    """Marked or not, and beside the files of a folder; its source, its module and its digest are known."""
    named = ["acme.tools.read_file", "acme.tools.plain"]
    options = {"named": named, "trusted": frozenset({"acme.tools"}), "python_path": [str(library)]}
    async with hosted(tmp_path / "owls", {"a.py": GREET}, **options) as folder:
        assert (await folder.call("read_file", path="x")).result == "read x"
        assert (await folder.call("plain", n=2)).result == 3
        assert (await folder.call("greet", name="Ada")).result == "hoot Ada"
        sources = {each.tool_name: each for each in folder.host.manifest.sources or ()}
        assert sources["owls.plain"].python_module == "acme.tools"
        assert sources["owls.plain"].file == str(library / "acme" / "tools.py")
        version = folder.host.tools["owls.plain"].definition.version

        (library / "acme" / "tools.py").write_text(TOOLS.replace("n + 1", "n + 2"))
        await folder.host.reload(is_forced=True)
        assert (await folder.call("plain", n=2)).result == 4
        assert folder.host.tools["owls.plain"].definition.version != version


@pytest.mark.parametrize("trusted", [frozenset[str](), frozenset({"acme.tools"})], ids=["none", "one like it"])
async def test_a_path_that_leads_to_no_tool_of_a_trusted_namespace_is_an_error(
    tmp_path: Path, library: Path, trusted: frozenset[str]
) -> None:
    """One that is not trusted is not imported: `acme.toolsmith` is not in `acme.tools`. Others are served, without any folder."""
    names = ["acme.toolsmith.read_file"]
    expected = {"acme.toolsmith.read_file": "UntrustedNamespace"}
    if trusted:
        trusted |= {"acme.broken", "acme.missing"}
        names += ["acme.broken.a", "acme.missing.a", "acme.tools.NOTHING", "acme.tools.read_file"]
        expected |= {
            "acme.broken.a": "ProcessEnded",
            "acme.missing.a": "ImportError",
            "acme.tools.NOTHING": "InvalidTool",
        }
    options = FolderOptions("owls", None, named=names, trusted=trusted, python_path=[str(library)], load_seconds=20)
    host = FolderHost(options)
    async with ModuleClient(host) as client:
        assert set(host.tools) == ({"owls.read_file"} if trusted else set())
        assert not trusted or (await client.call("read_file", path="x")).result == "read x"
        assert {each.file: each.error_type for each in host.manifest.load_errors or ()} == expected
        assert not (library / "acme" / "toolsmith.imported").exists()
