"""What a project is: a built web site, or a program that says in `deploy.json` how it is started."""

import os
import stat
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

Kind = Literal["static", "process"]

SITE_FOLDERS = ("dist", "public", "build", "")
"""Where builders put a finished site; the first that has an `index.html` counts. The last is the project itself."""

_DECLARATION = "deploy.json"
_MAX_DECLARATION_BYTES = 65_536


class DeployRefused(Exception):
    """The project cannot be deployed as it is. The message is for the model; nothing has changed."""


class Declaration(BaseModel):
    """`deploy.json`. `{port}` in the command is replaced; the port is also in the environment, as `PORT`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=4000)]], Field(min_length=1)]
    health: Annotated[str, StringConstraints(pattern=r"^/[\x21-\x7e]*$", max_length=500)] = "/"


class Plan(BaseModel):
    """How a project is deployed: the folder to copy, relative to the project, and what is started there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    folder: str = ""
    declaration: Declaration | None = None


def plan_for(project: int, kind: Kind | None) -> Plan:
    """Look at the open folder of a project. Raises `DeployRefused`."""
    declared = _read(project, _DECLARATION) if kind != "static" else None
    if declared is not None:
        try:
            return Plan(kind="process", declaration=Declaration.model_validate_json(declared))
        except ValidationError as exc:
            fault = exc.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the document"
            raise DeployRefused(f"{_DECLARATION} is wrong at {where}: {fault['msg']}.") from None
    if kind == "process":
        raise DeployRefused(
            f'A process needs a {_DECLARATION} such as {{"command": ["python", "app.py"], "health": "/"}}.'
        )
    for folder in SITE_FOLDERS:
        if _is_file(project, str(PurePath(folder, "index.html")), folder):
            return Plan(kind="static", folder=folder)
    raise DeployRefused(
        "There is no index.html in dist/, public/, build/ or the project itself, and no deploy.json. Build the site first."
    )


def _is_file(project: int, path: str, folder: str) -> bool:
    try:
        if folder and not stat.S_ISDIR(os.stat(folder, dir_fd=project, follow_symlinks=False).st_mode):
            return False
        return stat.S_ISREG(os.stat(path, dir_fd=project, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read(project: int, name: str) -> bytes | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=project)
    except FileNotFoundError:
        return None
    except OSError:
        raise DeployRefused(f"{name} is not a file.") from None
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise DeployRefused(f"{name} is not a file.")
        data = opened.read(_MAX_DECLARATION_BYTES + 1)
    if len(data) > _MAX_DECLARATION_BYTES:
        raise DeployRefused(f"{name} is larger than {_MAX_DECLARATION_BYTES} bytes.")
    return data
