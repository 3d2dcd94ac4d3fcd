"""Finds in a Python file, before it is imported, code that a tool should not need.

It is a lint: it shows what a reviewer would want to check, and malicious code can evade it. The fence around its
process is what confines a tool.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_BANNED_MODULES = frozenset(
    [
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
)
_BANNED_NAMES = frozenset(["__import__", "compile", "eval", "exec"])

_ALWAYS_MODULES = frozenset({"builtins", "posix", "nt", "_posixsubprocess", "_ctypes", "_socket", "runpy", "_imp"})
_DOORS = frozenset(  # attributes and names that lead from any object to every other
    [
        "__builtins__",
        "__subclasses__",
        "__globals__",
        "__code__",
        "__closure__",
        "__loader__",
        "__spec__",
        "__import__",
        "f_globals",
        "f_builtins",
        "f_locals",
        "gi_frame",
        "cr_frame",
        "ag_frame",
        "tb_frame",
    ]
)
_DEEPEST = 50
_LONGEST_TEXT = 200  # characters of a text that is put together

_UNICODE = 0x110000
_LEAVES = {ast.Constant, ast.Name, ast.Import, ast.ImportFrom}
_PLAIN = {"arg", "attr", "ctx", "id", "kind", "level", "module", "name", "names", "op", "ops", "type_comment"}
_CHILDREN: dict[type[ast.AST], tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """A violation of a rule, and its line."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class ScanRules:
    """The modules that must not be imported, by the first part of their names, and the built-in names that must not be used."""

    modules: frozenset[str] = _BANNED_MODULES
    names: frozenset[str] = _BANNED_NAMES

    def without(self, allowed: frozenset[str]) -> "ScanRules":
        """Return these rules with some names allowed."""
        return ScanRules(self.modules - allowed, self.names - allowed)


def scan(tree: ast.Module, rules: ScanRules) -> list[ScanFinding]:
    """Return the findings, in the order of the lines."""
    found = _Scan(rules)
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        kind = type(node)
        if (check := _CHECKS.get(kind)) is not None:
            check(found, node)
        for name in _children_of(kind):
            child = getattr(node, name, None)
            if type(child) is list:
                stack += [each for each in child if isinstance(each, ast.AST)]
            elif isinstance(child, ast.AST):
                stack.append(child)
    return sorted(set(found.findings), key=lambda each: (each.line, each.what))


class _Scan:
    def __init__(self, rules: ScanRules) -> None:
        self.findings: list[ScanFinding] = []
        self._modules = rules.modules | (_ALWAYS_MODULES if rules.modules else frozenset())
        self._names = rules.names
        self._hidden = self._modules | self._names | _DOORS
        self._summed = set[int]()  # sums that are parts of one that was looked at

    def imported(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)

    def imported_from(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and node.module is not None:
            self._module(node, node.module)

    def named(self, node: ast.Name) -> None:
        if node.id in self._names or node.id in _DOORS:
            self._add(node, f"uses {node.id}")

    def attribute(self, node: ast.Attribute) -> None:
        if node.attr in _DOORS:
            self._add(node, f"reads .{node.attr}")

    def constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value in _DOORS:
            self._add(node, f"names {node.value!r} in a text")

    def called(self, node: ast.Call) -> None:
        """Check a name that is looked up by its text, or a text that is composed."""
        if isinstance(node.func, ast.Name) and node.func.id in {"getattr", "setattr", "delattr", "vars"}:
            for each in node.args[1:2]:
                self._resolved(each)
        else:
            self.put_together(node)

    def subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, (ast.Call, ast.Attribute)):
            self._resolved(node.slice)
        self.put_together(node)

    def put_together(self, node: ast.expr) -> None:
        text = _text_of(node)
        if text is not None and text in self._hidden:
            self._add(node, f"puts {text!r} together")

    def summed(self, node: ast.BinOp) -> None:
        """Check a sum of texts, or of texts among other things: each run of texts is one text."""
        if id(node) in self._summed or not isinstance(node.op, ast.Add):
            return
        run: list[str] = []
        for part in reversed([None, *self._terms(node)]):
            text = None if part is None else _text_of(part)
            if text is not None:
                run.append(text)
                continue
            if len(run) > 1 and (whole := "".join(run)) in self._hidden:
                self._add(node, f"puts {whole!r} together")
            run = []

    def _terms(self, node: ast.expr) -> list[ast.expr]:
        """Return the terms of a sum, the last one first."""
        terms: list[ast.expr] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self._summed.add(id(node))
            terms.append(node.right)
            node = node.left
        return [*terms, node]

    def _resolved(self, node: ast.expr) -> None:
        text = _text_of(node)
        if text is not None and text in self._hidden:
            self._add(node, f"looks {text!r} up")

    def _module(self, node: ast.stmt, name: str) -> None:
        if name.partition(".")[0] in self._modules:
            self._add(node, f"imports {name}")

    def _add(self, node: ast.stmt | ast.expr, what: str) -> None:
        self.findings.append(ScanFinding(node.lineno, what))


_CHECKS: dict[type[ast.AST], Callable[[_Scan, Any], None]] = {
    ast.Import: _Scan.imported,
    ast.ImportFrom: _Scan.imported_from,
    ast.Name: _Scan.named,
    ast.Attribute: _Scan.attribute,
    ast.Constant: _Scan.constant,
    ast.Call: _Scan.called,
    ast.Subscript: _Scan.subscript,
    ast.BinOp: _Scan.summed,
    ast.JoinedStr: _Scan.put_together,
}


def _text_of(node: ast.expr, depth: int = 0) -> str | None:
    """Return the text that an expression of constants makes, as far as it is clear without running anything.

    The depth is bounded: a file may have a hundred thousand texts in one sum.
    """
    value: str | None = None
    if (depth := depth + 1) > _DEEPEST:
        return None
    match node:
        case ast.Constant(value=str(text)):
            value = text
        case ast.Constant(value=bytes(octets)):
            value = octets.decode("latin-1")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            value = _joined([left, right], depth)
        case ast.JoinedStr(values=values):
            value = _joined([each.value if isinstance(each, ast.FormattedValue) else each for each in values], depth)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=None, step=step)) if _is_minus_one(step):
            forward = _text_of(inner, depth)
            value = None if forward is None else forward[::-1]
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(number))]) if 0 <= number < _UNICODE:
            value = chr(number)
        case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments):
            value = _method_text(inner, method, arguments, depth)
        case _:
            pass
    return None if value is None or len(value) > _LONGEST_TEXT else value


def _joined(parts: list[ast.expr], depth: int, between: str = "") -> str | None:
    texts = [_text_of(each, depth) for each in parts]
    return None if None in texts else between.join(each for each in texts if each is not None)


def _method_text(inner: ast.expr, method: str, arguments: list[ast.expr], depth: int) -> str | None:
    text = _text_of(inner, depth)
    if text is None:
        return None
    if method in {"lower", "upper", "strip", "decode", "casefold"}:
        return str(getattr(text, method)()) if method != "decode" else text
    if method == "join" and len(arguments) == 1 and isinstance(arguments[0], (ast.List, ast.Tuple)):
        return _joined(arguments[0].elts, depth, text)
    if method == "replace" and len(arguments) == 2:  # noqa: PLR2004 - what is replaced, and by what
        old, new = (_text_of(each, depth) for each in arguments)
        return None if old is None or new is None else text.replace(old, new)
    return None


def _is_minus_one(node: ast.expr | None) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_one(node.operand)


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _children_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that can hold nodes: checking the others would take half of the time."""
    known = _CHILDREN.get(kind)
    if known is None:
        known = _CHILDREN[kind] = () if kind in _LEAVES else tuple(each for each in kind._fields if each not in _PLAIN)
    return known
