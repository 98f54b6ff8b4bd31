"""Pack vLLM for a GPU machine without network: its wheel without what the card does not use, and further packages.

    python -m lab.gpu.vllm_pack [--out lab/gpu/carry]

The version of vLLM must fit the machine's own torch (0.20 to 0.26 fit 2.11). About 26 of its 240 MiB are carried: a
library of CUDA kernels holds them for a dozen kinds of GPU, and those overwritten with zeros compress to nothing.
"""

from __future__ import annotations

import struct
import tarfile
import zipfile
from pathlib import Path

import click

from lab.gpu.pack import CARRY, HERE, WHEELS, add_file, contents, download, is_unused, wheel_of

VLLM, SITE = "vllm.tar.xz", "site.tar.xz"
ARCHITECTURE = 90
"""Hopper's compute capability, 9.0."""
FATBIN, PTX, CUBIN = b"\x50\xed\x55\xba", 1, 2
UNUSED = ("vllm/benchmarks/", "vllm/third_party/fmha_sm100/", "mistral_common/data/", "pycountry/locales/")
UNUSED_NAMES = ("vllm/vllm-rs", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
"""A server in Rust, and FlashAttention 2, which FlashAttention 3 replaces on this card."""
UNUSED_ENDINGS = (".jpg", *(f"cpython-3{minor}-x86_64-linux-gnu.so" for minor in (10, 11, 13, 14)))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=CARRY, show_default="lab/gpu/carry")
def pack(out: Path) -> None:
    """Make vllm.tar.xz and site.tar.xz, and print their sizes."""
    out.mkdir(parents=True, exist_ok=True)
    lines = (HERE / "vllm_wheels.txt").read_text().splitlines()
    first, *others = [line for line in lines if line and not line.startswith("#")]
    download([first, *others], WHEELS)
    pack_wheels([wheel_of(first, WHEELS)], out / VLLM)
    pack_wheels([wheel_of(pin, WHEELS) for pin in others], out / SITE)
    click.echo(contents(out, (VLLM, SITE)))


def pack_wheels(wheels: list[Path], target: Path) -> None:
    """The content of `wheels` in one stream, with the kernels of other GPUs blanked."""
    with tarfile.open(target, "w:xz", preset=6) as archive:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as file:
                for name in file.namelist():
                    if not (name.endswith("/") or is_left_out(name)):
                        content = file.read(name)
                        add_file(archive, name, blanked(content) if name.endswith(".so") else content)


def is_left_out(name: str) -> bool:
    """Whether a file of a wheel is left out. Headers are kept, because vLLM compiles some kernels on the machine.

    >>> is_left_out("vllm/benchmarks/serve.py"), is_left_out("vllm/third_party/deep_gemm/include/cute/util.hpp")
    (True, False)
    """
    left = name.startswith(UNUSED) or name in UNUSED_NAMES or name.endswith(UNUSED_ENDINGS)
    return left or (not name.startswith("vllm/") and is_unused(name))


def blanked(library: bytes) -> bytes:
    """A shared library with zeros in place of the machine code of other GPUs and of all code to be compiled (PTX).

    The CUDA compiler puts kernels into containers: a header (magic number, version, its own size, the size of what
    follows), then entries with (kind, header size, size) and, at byte 28, the compute capability. The driver loads the
    entry for its own card and ignores the others. Sizes and offsets do not change, so the library loads as before.
    """
    content, place = bytearray(library), 0
    while (place := content.find(FATBIN, place)) >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", content, place)
        end = place + header + size
        if version != 1 or header != 16 or end > len(content):
            place += len(FATBIN)
            continue
        at = place + header
        while at < end:
            kind, _, own_header, own_size = struct.unpack_from("<HHIQ", content, at)
            (capability,) = struct.unpack_from("<I", content, at + 28)
            if kind == PTX or (kind == CUBIN and capability != ARCHITECTURE):
                content[at + own_header : at + own_header + own_size] = bytes(own_size)
            at += own_header + own_size
        place = end
    return bytes(content)


if __name__ == "__main__":
    pack()
