"""Tools for Triton: build and check model repositories, simulate its batchers, run the TensorRT-LLM backend's clients.

This package may import sizing and calibration, never the reverse; command lines find it by name.
"""
