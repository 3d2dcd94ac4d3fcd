"""What a scan of a tool's file finds, and what it has nothing against."""

import ast

import pytest

from toolfleet_modules.hosts.folder.scan import ScanFinding, ScanRules, scan

BANNED = [
    "code",
    "codeop",
    "concurrent",
    "ctypes",
    "importlib",
    "multiprocessing",
    "os",
    "pty",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "threading",
]


def found(text: str, rules: ScanRules | None = None) -> list[str]:
    return [each.what for each in scan(ast.parse(text), rules or ScanRules())]


@pytest.mark.parametrize("module", BANNED)
def test_a_banned_module_is_found_in_every_form_of_import(module: str) -> None:
    """At the top and inside of functions, renamed, in parts, with a star, and below another name."""
    forms = [
        f"import {module}",
        f"import json, {module} as harmless",
        f"import {module}.deeper",
        f"from {module} import something",
        f"from {module} import something as harmless",
        f"from {module}.deeper import *",
        f"def f():\n    if 1:\n        import {module}",
        f"class A:\n    from {module} import x",
        f"try:\n    pass\nexcept ValueError:\n    import {module}",
    ]
    assert [form for form in forms if not found(form)] == []


@pytest.mark.parametrize("name", ["eval", "exec", "compile", "__import__"])
def test_a_banned_function_is_found_called_renamed_or_looked_up(name: str) -> None:
    """Also by a text, and by one that is put together."""
    half = len(name) // 2
    forms = [
        f"{name}('1')",
        f"harmless = {name}",
        f"[{name}][0]('1')",
        f"getattr(__builtins__, '{name}')('1')",
        f"getattr(thing, '{name[:half]}' + '{name[half:]}')",
        f"vars(thing)['{name[:half]}' '{name[half:]}']",
        f"thing.__dict__['{name}']",
        f"globals()[''.join(['{name[:half]}', '{name[half:]}'])]",
        f"x = start + '{name[:half]}' + '{name[half:]}'",
        f"globals()['{name[::-1]}'[::-1]]",
        f"f'{name[:half]}{{\"{name[half:]}\"}}'",
        f"globals()['{name.upper()}'.lower()]",
        f"globals()['z{name}'.replace('z', '')]",
        f"import builtins\nbuiltins.{name}",
    ]
    assert [form for form in forms if not found(form)] == []


@pytest.mark.parametrize(
    "text",
    [
        "().__class__.__base__.__subclasses__()",
        "f.__globals__['x']",
        "getattr(f, '__glo' + 'bals__')",
        "f.__code__.co_consts",
        "(x for x in y).gi_frame.f_back",
        "__builtins__['open']",
        "json.__loader__",
        "getattr(x, chr(95) + '_globals__')",
        "getattr(x, b'__globals__'.decode())",
        "operator.attrgetter('__subclasses__')",
    ],
)
def test_a_way_to_every_other_object_is_found(text: str) -> None:
    """By attributes, by names, and by texts."""
    assert found(text)


@pytest.mark.parametrize(
    "text",
    [
        "import json, re, math, datetime\nfrom pathlib import Path",
        "re.compile('x').match('y')",
        "text = 'os' if x else 'sys'",
        "d = {'eval': 1}\nd['eval']",
        "from . import os",
        "from .sys import path",
        "model.evaluate()",
        "name = 'a' + 'b'\nx[::-1]",
        "def f(os: str) -> str:\n    '''Use os.'''\n    return f'{os}'",
        "'execute'.replace('ute', '')  # noqa",
    ],
)
def test_what_only_looks_like_it_is_not_found(text: str) -> None:
    """Attributes of other things, plain texts, files of the folder, and names of parameters."""
    expected = ["puts 'exec' together"] if "execute" in text else []
    assert found(text) == expected


def test_a_sum_of_very_many_texts_is_read_in_its_time() -> None:
    """No file is nested too deep for it, and each text is looked at a few times only."""
    text = ("x = " + "+".join(["'abc'"] * 500) + "\n") * 300 + "import os\n"
    assert found(text) == ["imports os"]


def test_a_finding_has_its_line() -> None:
    """In the order of the lines, each once."""
    text = "import json\nimport os\n\n\nx = eval('1') + eval('2')\n"
    assert scan(ast.parse(text), ScanRules()) == [ScanFinding(2, "imports os"), ScanFinding(5, "uses eval")]


def test_what_is_allowed_is_not_found() -> None:
    """A name off the list is as any other."""
    rules = ScanRules().without(frozenset({"os", "eval"}))
    assert found("import os\nimport sys\neval('1')", rules) == ["imports sys"]


def test_python_of_every_kind_is_read() -> None:
    """Statements and expressions of every kind are walked through."""
    text = """
async def f(a, /, b: int = 1, *c, d=2, **e) -> int:
    async with a as x, b:
        async for y in z:
            yield await w
    match a:
        case [1, *rest] | {"k": v, **more} if v:
            import os
        case A(b=1) as q:
            pass
    global g
    with x: del y[0:1:2]
    try: raise ValueError from None
    except* OSError: ...
    else: assert x, y
    finally: return [*a, {1, 2}, {**b}, (lambda: 1)(), x if y else z, not a, a < b < c, a[1, ...], (n := 3), f"{a!r:>{b}}"]
""".replace("            yield await w", "            await w")
    assert found(text) == ["imports os"]
