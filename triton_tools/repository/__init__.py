"""Triton model repositories in the TensorRT-LLM layout: build, fill, check. Start with `builder.build_repository`.

The local reference server's own repository is written by `build`.
"""

from triton_tools.repository.local import TRITON_VERSION, Machine, build, cpu_name, this_cpu

__all__ = ["TRITON_VERSION", "Machine", "build", "cpu_name", "this_cpu"]
