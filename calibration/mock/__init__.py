"""A mock of Triton with known timings, and a log of what it really did: what a load generator is held against."""

from calibration.mock.process import RunningMock, running
from calibration.mock.service import Script, Truth

__all__ = ["RunningMock", "Script", "Truth", "running"]
