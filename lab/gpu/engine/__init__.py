"""The reference engine's model for a GPU: Triton kernels for paged attention and fused steps, CUDA graphs to decode."""
