"""Measure a GPU unattended: the real Triton server with models of real shapes, random weights, and this engine."""
