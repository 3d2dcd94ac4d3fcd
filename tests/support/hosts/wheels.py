"""Small packages, built into a folder: what is installed in tests comes from there."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

from toolfleet_modules.hosts.folder.packages import InstallOptions


def build_wheel(folder: Path, name: str, version: str, *, needs: Sequence[str] = (), code: str = "") -> Path:
    """A pure wheel, whose module `name` has its `VERSION` and this code."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in needs),
    ]
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\n{code}",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(each, text)
    return path


def build_sdist(folder: Path, name: str, note: Path) -> None:
    """A package without a wheel, that writes a note when it is built."""
    import io  # as below
    import tarfile  # for this one kind

    folder.mkdir(parents=True, exist_ok=True)
    setup = f"open({str(note)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name={name!r}, version='1.0')\n"
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in {
            "setup.py": setup,
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        }.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


def installed_from(
    wheels: Path, environments: Path, *, seconds: float = 60, allow_builds: bool = False
) -> InstallOptions:
    """Packages of these wheels only, and without any network."""
    options = ["--no-index", "--find-links", str(wheels), "--offline"]
    return InstallOptions(environments, allow_builds=allow_builds, options=options, seconds=seconds)
