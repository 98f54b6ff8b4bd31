"""Triton's own world: model repositories built and checked, its batchers simulated, the TensorRT-LLM backend's clients.

A tenant: it may import sizing and calibration, never the reverse; command lines find it by name.
"""
