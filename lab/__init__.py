"""Test beds: the reference server (real Triton with a small engine of our own), vLLM on the CPU, a mock, a GPU machine.

This package may import sizing and calibration, never the reverse; command lines and the self-check find it by name.
"""
