"""A mock of Triton with known timings, and a log of what it really did: what a load generator is held against."""

from calibration.mock.process import RunningMock, running
from calibration.mock.script import Script
from calibration.mock.truth import Truth

__all__ = ["RunningMock", "Script", "Truth", "running"]
