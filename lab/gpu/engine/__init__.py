"""The reference engine's model for a GPU: paged attention and fused steps as Triton kernels, CUDA graphs to decode."""
