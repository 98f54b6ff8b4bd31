"""vLLM on this machine's CPU: a production engine without a GPU, its model small and its weights random."""
