"""On the GPU machine: create an environment from the carried packages, then measure in it. Needs only the standard
library.

    python3 -m lab.gpu.go --budget-s 540 --out OUT [options of lab.gpu.measure]

The machine's own Python is used if it has a shared libpython, which Triton's Python backend loads; otherwise the
carried one, with the machine's packages. The next call on the same machine reuses the environment.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

CARRY = Path(__file__).parent / "carry"
WORK = Path(os.environ.get("GPU_WORK", "/tmp/gpu-measure"))
CARRIED_VARIABLE = "GPU_CARRIED_PYTHON"
"""If this variable is set, the carried Python is used even if the machine's own would do."""
PACKAGES_VARIABLE = "GPU_PACKAGES"


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):  # the options of lab.gpu.measure need its packages
        print(__doc__)
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = [path for path in (*site.getsitepackages(), *sys.path) if path.endswith("-packages")]
    packages += os.environ.get(PACKAGES_VARIABLE, "").split(":")
    packages = list(dict.fromkeys(filter(None, packages)))
    wants_carried = (not has_libpython(version) or CARRIED_VARIABLE in os.environ) and WORK not in Path(
        sys.base_prefix
    ).parents
    if wants_carried:
        python = unpacked_python(version)
        os.environ[PACKAGES_VARIABLE] = ":".join(packages)
        os.execv(python, [str(python), "-m", "lab.gpu.go", *sys.argv[1:]])
    own, environment = WORK / "site", WORK / "environment"
    unpack(CARRY / "packages.tar.xz", own, "site/")
    make_environment(environment, packages, version)
    places = [str(Path.cwd()), str(own), *packages]
    os.environ |= {"PYTHONPATH": ":".join(places), "SIZING_TRITON_ENV": str(environment)}
    os.execv(sys.executable, [sys.executable, "-m", "lab.gpu.measure", *sys.argv[1:]])


def has_libpython(version: str) -> bool:
    """Whether this interpreter's shared library is where the server will look for it."""
    name, base = f"libpython{version}.so.1.0", Path(sys.base_prefix)
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    places = [Path(sysconfig.get_config_var("LIBDIR") or "/"), base / "lib", base / "lib64", base / "lib" / multiarch]
    return any((place / name).exists() for place in places)


def unpacked_python(version: str) -> Path:
    """The carried Python, unpacked once."""
    folder = WORK / "python"
    python = folder / "bin" / f"python{version}"
    archive = CARRY / "python.tar.xz"
    if not archive.exists() and not stamp(archive, folder).exists():
        sys.exit(f"no libpython{version} here and none was carried: make the folder again with gpu.pack --python")
    unpack(archive, folder)
    library = str(folder / "lib")
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [library, os.environ.get("LD_LIBRARY_PATH", "")]))
    return python


def stamp(archive: Path, folder: Path) -> Path:
    """The file that says that the archive is unpacked in `folder`, whole: a call may be cut in the middle of it."""
    return folder / f".unpacked-{archive.name}"


def unpack(archive: Path, folder: Path, room: str = "") -> None:
    """Unpack the part of the archive under `room` into `folder`, once."""
    if stamp(archive, folder).exists():
        return
    if not archive.exists():
        sys.exit(f"{archive} is missing: make it with python -m lab.gpu.pack, where there is a network, and copy it")
    with tarfile.open(archive) as file:
        members = [member for member in file.getmembers() if member.name.startswith(room)]
        for member in members:
            member.name = member.name[len(room) :]
        file.extractall(folder, members, filter="data")
    stamp(archive, folder).touch()


def make_environment(folder: Path, packages: list[str], version: str) -> None:
    """The reference server's environment, as `lab.environment` would have created it.

    Its own packages, the server and numpy 1.26, come before the machine's, among them torch.
    """
    target = folder / "venv" / "lib" / f"python{version}" / "site-packages"
    if not stamp(CARRY / "server.tar.xz", target).exists():
        venv.EnvBuilder(symlinks=True, with_pip=False, clear=True).create(folder / "venv")
        unpack(CARRY / "packages.tar.xz", target, "server/")
        unpack(CARRY / "server.tar.xz", target)
    (target / "machine.pth").write_text("\n".join(packages) + "\n")
    (folder / "logs").mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
