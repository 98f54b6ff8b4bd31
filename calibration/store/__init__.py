"""Runs and their points in a database, and their requests in files beside it. Start with `runs.Store`."""

from calibration.store.database import DATABASE_VARIABLE
from calibration.store.runs import LIVE, LOST_AFTER_S, Ending, Run, State, Store

__all__ = ["DATABASE_VARIABLE", "LIVE", "LOST_AFTER_S", "Ending", "Run", "State", "Store"]
