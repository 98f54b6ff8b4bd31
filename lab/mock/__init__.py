"""A mock of Triton with known timings and a log of the true ones, to test load generators against."""
