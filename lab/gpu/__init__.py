"""Measure a GPU unattended: the real Triton server and our own engine with models of real shape and random weights."""
