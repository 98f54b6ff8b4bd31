"""A mock of Triton with known timings, and a log of what it really did: what a load generator is held against."""
