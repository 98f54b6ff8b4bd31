"""Make the folder to carry to a GPU machine without network: the Triton server, Python 3.12, and wheels.

    python -m lab.gpu.pack [--python /path/to/python3.12] [--out lab/gpu/carry]

It needs the reference server's environment (created by `python -m calibration serve`) and, once, a package index.
"""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from lab.environment import ensure
from lab.reference.server import TRITON
from sizing.files import written

HERE = Path(__file__).parent
CARRY = HERE / "carry"
SERVER, PYTHON, PACKAGES = "server.tar.xz", "python.tar.xz", "packages.tar.xz"
WHEELS = written(".cache/gpu-wheels")
VERSION = "3.12"
LARGEST_BYTES = 56 * 2**20
"""The rest of the 64 MiB that can be carried is for the project itself and for what earlier calls measured."""
PLATFORMS = (*(f"manylinux_2_{minor}" for minor in (31, 28, 27, 26, 24, 17)), "manylinux2014", "manylinux1")
NOT_CARRIED = frozenset("test tests idlelib turtledemo ensurepip tkinter lib2to3 pydoc_data __pycache__".split())
UNUSED = ("numpy/f2py/", "numpy/distutils/", "numpy/core/lib/", "sqlalchemy/testing/")
UNUSED_ENDINGS = (".pyi", ".pyx", ".pxd", ".a", ".h", ".c")
SERVER_ONLY = "numpy-1.26"
NOT_CARRIED_NAMES = ("_test", "_tkinter", "_xxtest", "config-")


@click.command()
@click.option("--python", "interpreter", type=click.Path(exists=True, path_type=Path), help="A Python 3.12.")
@click.option("--out", type=click.Path(path_type=Path), default=CARRY, show_default="lab/gpu/carry")
def pack(interpreter: Path | None, out: Path) -> None:
    """Make the folder to carry and print what is in it; fails if it is too large."""
    out.mkdir(parents=True, exist_ok=True)
    ready = ensure(TRITON)
    pack_server(ready.site_packages, out / SERVER)
    if interpreter is not None:
        pack_python(interpreter, out / PYTHON)
    elif not (out / PYTHON).exists():
        click.echo("without --python: the machine must have a shared libpython3.12 of its own", err=True)
    wanted = pinned(HERE / "wheels.txt")
    download(wanted, WHEELS)
    pack_packages([wheel_of(pin, WHEELS) for pin in wanted], out / PACKAGES)
    click.echo(contents(out))


def pack_server(site_packages: Path, target: Path) -> None:
    """The server's program, Python backend, stub for 3.12, and the libraries that `ldd` says they need."""
    server = site_packages / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / VERSION / "triton_python_backend_stub"
    programs = [server / "bin" / "tritonserver", stub, *sorted((server / "backends" / "python").iterdir())]
    libraries = needed(programs, site_packages / "nvidia_pytriton.libs")
    with tarfile.open(target, "w:xz", preset=6) as archive:
        for path in [*programs, *libraries]:
            archive.add(path, path.relative_to(site_packages), filter=_plain)


def needed(programs: Iterable[Path], folder: Path) -> list[Path]:
    """The libraries in `folder` that any of `programs` loads, as the dynamic loader finds them."""
    names: set[str] = set()
    for program in programs:
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        names |= {line.split()[0] for line in said.splitlines() if "=>" in line}
    return sorted(path for path in folder.iterdir() if path.name in names)


def pack_python(interpreter: Path, target: Path) -> None:
    """A Python with its shared library, headers and standard library, for a machine whose own has no libpython.

    Debug information and parts that no program needs (tests, IDLE, Tk) are left out.
    """
    base, version = _base_of(interpreter)
    library = f"lib/libpython{version}.so.1.0"
    with tarfile.open(target, "w:xz", preset=6) as archive:
        archive.add(base / "bin" / f"python{version}", f"bin/python{version}", filter=_plain)
        archive.add(base / "include", "include", filter=_plain)
        archive.add(base / "lib" / f"python{version}", f"lib/python{version}", filter=_carried)
        add_file(archive, library, _stripped(base / library))


def _base_of(interpreter: Path) -> tuple[Path, str]:
    asks = "import sys; print(sys.base_prefix); print('%d.%d' % sys.version_info[:2])"
    base, version = subprocess.run(
        [str(interpreter), "-c", asks], capture_output=True, text=True, check=True
    ).stdout.split()
    if version != VERSION:
        raise click.ClickException(f"{interpreter} is Python {version}: Python {VERSION} is needed")
    return Path(base), version


def _stripped(library: Path) -> bytes:
    """The library, without debug information if `strip` is installed."""
    copy = CARRY / "stripped"
    try:
        subprocess.run(["strip", "--strip-unneeded", "-o", str(copy), str(library)], check=True)
        return copy.read_bytes()
    except (OSError, subprocess.CalledProcessError):
        return library.read_bytes()
    finally:
        copy.unlink(missing_ok=True)


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755
    archive.addfile(info, io.BytesIO(content))


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def _carried(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(info.name).parts
    name = parts[-1]
    if NOT_CARRIED & set(parts) or "site-packages" in parts or name.startswith(NOT_CARRIED_NAMES):
        return None
    return None if name.endswith((".pyc", ".a")) else _plain(info)


def pinned(file: Path) -> list[str]:
    """The wheels named in `file`, each in the version that it pins or else the one installed here."""
    lines = [line.strip() for line in file.read_text().splitlines()]
    names = [line for line in lines if line and not line.startswith("#")]
    return [name if "==" in name else f"{name}=={importlib.metadata.version(name)}" for name in names]


def download(wheels: Sequence[str], folder: Path) -> None:
    """Fetch `wheels` for Python 3.12 on x86-64 Linux, without their dependencies; those already there are kept."""
    platforms = [part for name in PLATFORMS for part in ("--platform", f"{name}_x86_64")]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = ["--only-binary=:all:", "--python-version", VERSION, "--implementation", "cp", *platforms]
    done = subprocess.run([*pip, *target, "--dest", str(folder), *wheels], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise click.ClickException(f"wheels cannot be fetched: {last}")


def wheel_of(pin: str, folder: Path) -> Path:
    """The downloaded wheel of ``name==version``."""
    stem = pin.replace("-", "_").replace("==", "-").lower()
    return next(path for path in folder.glob("*.whl") if path.name.lower().startswith(f"{stem}-"))


def pack_packages(wheels: Sequence[Path], target: Path) -> None:
    """The content of the wheels: the server's own under ``server/``, the others under ``site/``.

    One stream is half as large as the wheels. Tests, stubs and files for a compiler are left out.
    """
    with tarfile.open(target, "w:xz", preset=6) as archive:
        for wheel in wheels:
            room = "server" if wheel.name.startswith(SERVER_ONLY) else "site"
            with zipfile.ZipFile(wheel) as file:
                for name in file.namelist():
                    if not (name.endswith("/") or is_unused(name)):
                        add_file(archive, f"{room}/{name}", file.read(name))


def is_unused(name: str) -> bool:
    """Whether nothing here imports the file of that name in a wheel.

    >>> is_unused("numpy/core/tests/test_dtype.py"), is_unused("numpy/core/numeric.py")
    (True, False)
    """
    return name.startswith(UNUSED) or name.endswith(UNUSED_ENDINGS) or "/tests/" in name


def contents(folder: Path, names: Sequence[str] = (SERVER, PYTHON, PACKAGES)) -> str:
    """A line for each of `names` in `folder`, and the sum. Raises ClickException if it is too large to carry."""
    files = sorted(path for path in folder.rglob("*") if path.name in names)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    total = sum(sizes.values())
    lines = [f"{size / 2**20:7.2f} MiB  {name}" for name, size in sizes.items()]
    if total > LARGEST_BYTES:
        raise click.ClickException(
            f"{total / 2**20:.1f} MiB to carry, at most {LARGEST_BYTES / 2**20:.0f} fit: remove something of\n"
            + "\n".join(lines)
        )
    return "\n".join([*lines, f"{total / 2**20:7.2f} MiB  in all, of {LARGEST_BYTES / 2**20:.0f}"])


if __name__ == "__main__":
    pack()
