"""Runs, their points and the records of their requests, in a database and files beside it. Start with `runs.Store`."""

from calibration.store.runs import DATABASE_VARIABLE, LIVE, STATES, Ending, Run, State, Store

__all__ = ["DATABASE_VARIABLE", "LIVE", "STATES", "Ending", "Run", "State", "Store"]
