"""Test beds: the reference server (real Triton, a small engine of our own) and the script for a machine with a GPU.

A tenant: it may import sizing and calibration, never the reverse; command lines find it by name.
"""
