"""The views of the Calibrate page: coverage, a new run, the runs, import."""
