"""Build, fill and check Triton model repositories in the TensorRT-LLM layout. Start with `builder.build_repository`.

`local.build` writes the repository of the local reference server.
"""

from triton_tools.repository.local import TRITON_VERSION, Machine, build, cpu_name, this_cpu

__all__ = ["TRITON_VERSION", "Machine", "build", "cpu_name", "this_cpu"]
