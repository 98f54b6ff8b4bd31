"""Triton's batchers as a simulation: dynamic and sequence batcher, read from config.pbtxt, and a tuner."""
