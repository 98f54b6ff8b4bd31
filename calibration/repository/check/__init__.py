"""Read a model repository as Triton would, and name every fault with file and line. Start with `reader.check`."""

from calibration.repository.check.faults import Fault
from calibration.repository.check.reader import check

__all__ = ["Fault", "check"]
