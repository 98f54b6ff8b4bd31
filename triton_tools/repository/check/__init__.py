"""Read a model repository as Triton would, and name every fault with file and line. Start with `reader.check`."""

from triton_tools.repository.check.faults import Fault
from triton_tools.repository.check.reader import check

__all__ = ["Fault", "check"]
