"""A real Triton server with a small real model, for a machine without a GPU."""
