"""Test beds: the reference server (real Triton, a small engine of our own), vLLM on the CPU, the mock, a GPU machine.

A tenant: it may import sizing and calibration, never the reverse; command lines and the self-check find it by name.
"""
