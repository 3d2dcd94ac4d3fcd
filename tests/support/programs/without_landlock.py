"""Runs a command to which the kernel refuses Landlock, and mounts of its own if asked, as old kernels and strict containers do.

`python without_landlock.py [--mounts] COMMAND …`; a filter of system calls says so to all that the command starts.
"""

import ctypes
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NO_SUCH_CALL, _FORBIDDEN = 0x7FFF0000, 0x00050000 | 38, 0x00050000 | 1
_CREATE_RULESET = 444
_UNSHARE = {"x86_64": 272, "aarch64": 97}[platform.machine()]


def refuse(calls: dict[int, int]) -> None:
    """From now on the calls of these numbers fail."""
    steps = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for number, answer in calls.items():
        steps += [struct.pack("HBBI", _IS, 0, 1, number), struct.pack("HBBI", _RETURN, 0, 0, answer)]
    program = ctypes.create_string_buffer(b"".join([*steps, struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)]))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps) + 1, ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "no new privileges")
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER), whole, zero, zero):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    command = sys.argv[1:]
    refused = {_CREATE_RULESET: _NO_SUCH_CALL}
    if command[0] == "--mounts":
        refused[_UNSHARE] = _FORBIDDEN
        command = command[1:]
    refuse(refused)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
