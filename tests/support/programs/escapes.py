"""What a program tries that means harm, and what becomes of it."""


def outcomes(attempts: dict[str, str]) -> str:
    """A program that prints what becomes of each attempt: its value, or its error's class."""
    return f"""
import ctypes, errno, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
told = {{}}
for name, code in {attempts!r}.items():
    try:
        told[name] = eval(code)
    except OSError as exc:
        told[name] = type(exc).__name__
print(json.dumps(told, default=str))
"""
