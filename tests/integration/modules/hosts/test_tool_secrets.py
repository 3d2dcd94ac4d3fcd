"""Secrets of a tool folder: they reach the tools that name them, and are hidden in whatever comes back."""

import asyncio
from pathlib import Path

import pytest

from support.documents import programs
from support.hosts.tool_folder import HEAD, hosted
from support.streams.stream_server import stream_server
from support.waiting import wait_until
from toolfleet_modules.hosts.secrets import Secrets

pytestmark = pytest.mark.asyncio

VALUE = "planted-gh/0123456789"
SECRETS = Secrets({"TOKEN": VALUE, "NUMBER": "1234567890"})

LEAKING = (
    HEAD
    + '''
import os, sys

@tool(secrets=["TOKEN", "NUMBER"])
def take(context: Context) -> list[str]:
    """Take them."""
    return [str(len(context.secrets["TOKEN"])), *context.secrets]

@tool
def nothing(context: Context) -> list[str]:
    """Take none."""
    return list(context.secrets)

@tool(secrets=["TOKEN", "NUMBER"])
async def give(context: Context) -> dict[str, object]:
    """Give it away."""
    return {context.secrets["TOKEN"]: [context.secrets["TOKEN"] + "!"], "n": int(context.secrets["NUMBER"])}

@tool(secrets=["TOKEN"], runs_in="process")
def fail(context: Context) -> str:
    """Fail in words."""
    raise ToolError(f"refused: {context.secrets['TOKEN']}", effect_state="none")

@tool(secrets=["TOKEN"])
async def report(context: Context) -> str:
    """Report it."""
    await context.progress(0.5, f"with {context.secrets['TOKEN']}")
    await context.log("info", {"with": context.secrets["TOKEN"]}, logger="barn")
    context.log("debug", "quiet")
    return "done"

@tool(secrets=["TOKEN"])
def shout(context: Context) -> str:
    """Write it everywhere."""
    print("print", context.secrets["TOKEN"], flush=True)
    sys.stderr.write(f"stderr {context.secrets['TOKEN']}\\n")
    os.write(2, f"raw {context.secrets['TOKEN'][:9]}".encode())
    os.write(2, f"{context.secrets['TOKEN'][9:]} end\\n".encode())
    raise KeyError(context.secrets["TOKEN"])
'''
)


async def test_a_value_is_hidden_in_whatever_a_tool_does_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Returned, raised, reported, printed, or in a traceback. A tool gets the secrets that it names, with its call only."""
    async with hosted(tmp_path, {"owls.py": LEAKING}, security="off", secrets=SECRETS) as folder:
        assert (await folder.call("take")).result == ["21", "TOKEN", "NUMBER"]
        assert (await folder.call("nothing")).result == []
        given = await folder.call("give")
        failed = await folder.call("fail")
        reported = await folder.client.send("report", {}, log_level="info")
        shouted = await folder.call("shout")
        said = ""

        def has_said() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "KeyError" in said and "end" in said

        await wait_until(has_said, "all that it has written is there")

    assert given.result == {"[secret TOKEN]": ["[secret TOKEN]!"], "n": "[secret NUMBER]"}
    assert (failed.error, failed.effect_state) == ("refused: [secret TOKEN]", "none")
    assert reported.progress == ((0.5, "with [secret TOKEN]"),)
    assert [message.fields() for message in reported.log] == [
        {"level": "info", "data": {"with": "[secret TOKEN]"}, "logger": "barn"}
    ]
    assert shouted.error == "owls.shout failed inside the module (KeyError); its log says why."
    for line in (
        "print [secret TOKEN]",
        "stderr [secret TOKEN]",
        "raw [secret TOKEN] end",
        "KeyError: '[secret TOKEN]'",
    ):
        assert line in said
    assert VALUE not in said


RAISING = (
    HEAD
    + """
import asyncio

class Wordless(Exception):
    def __str__(self):
        raise RuntimeError

async def fails():
    raise LookupError("no owl")

@tool(secrets=["TOKEN"])
async def fail(how: str, context: Context) -> str:
    \"\"\"Fail.\"\"\"
    if how == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    raise {"text": ValueError("no such x: 3"), "empty": ValueError(), "wordless": Wordless(), "exit": SystemExit("over"),
           "secret": KeyError(context.secrets["TOKEN"]), "word": ToolError("Say another.")}[how]
"""
)
HIDDEN = "owls.fail failed inside the module ({}); its log says why."


EXCEPTIONS = {
    "text": (HIDDEN.format("ValueError"), "owls.fail failed: ValueError: no such x: 3"),
    "exit": (HIDDEN.format("SystemExit"), "owls.fail failed: SystemExit: over"),
    "group": (HIDDEN.format("ExceptionGroup"), "owls.fail failed: LookupError: no owl"),
    "secret": (HIDDEN.format("KeyError"), "owls.fail failed: KeyError: '[secret TOKEN]'"),
    "empty": (HIDDEN.format("ValueError"), HIDDEN.format("ValueError")),
    "wordless": (HIDDEN.format("Wordless"), HIDDEN.format("Wordless")),
    "word": ("Say another.", "Say another."),
}


@pytest.mark.parametrize("exception_text", [False, True])
async def test_the_text_of_an_exception_is_shown_where_its_host_says_so(tmp_path: Path, exception_text: bool) -> None:
    """Without secrets. By default a model reads the kind only."""
    files = {"owls.py": RAISING}
    async with hosted(tmp_path, files, security="off", secrets=SECRETS, exception_text=exception_text) as folder:
        said = {how: (await folder.call("fail", how=how)).error for how in EXCEPTIONS}

    assert said == {how: words[exception_text] for how, words in EXCEPTIONS.items()}


async def test_the_guides_file_sends_its_secret(tmp_path: Path) -> None:
    """Its server gets the value; a server that says it again is not heard."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        said = next(line for line in head.splitlines() if line.startswith("Authorization"))
        seen.append(said)
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())

    seen: list[str] = []
    guide = programs("docs/guides/tool-folders.md")["tool-secrets"]
    secrets = Secrets({"GITHUB_TOKEN": VALUE})
    async with stream_server(answer) as port, hosted(tmp_path, {"owls.py": guide}, secrets=secrets) as folder:
        fetched = await folder.call("fetch", url=f"http://127.0.0.1:{port}/")

    assert seen == [f"Authorization: Bearer {VALUE}"]
    assert fetched.result == "Authorization: Bearer [secret GITHUB_TOKEN]"


async def test_a_secret_that_the_host_has_not_is_a_load_error(tmp_path: Path) -> None:
    """Of that file, whose version before stays in effect; what names no secrets as it should is one, too."""
    wrong = LEAKING.replace('@tool(secrets=["TOKEN"])', '@tool(secrets=["OTHER"])')
    text = LEAKING.replace('secrets=["TOKEN"]', 'secrets="TOKEN"')
    async with hosted(tmp_path, {"owls.py": LEAKING}, security="off", secrets=SECRETS) as folder:
        folder.write("owls.py", wrong)
        await folder.wait_for_errors({"owls.py": ("SecretMissing", "previous")})
        (error,) = folder.host.manifest.load_errors or []
        assert error.message == "owls.report names the secret 'OTHER', which its host has not."
        assert (await folder.call("report")).success

        folder.write("owls.py", text)
        await folder.wait_for_errors({"owls.py": ("TypeError", "previous")})
