"""The engine behind `tensorrt_llm`: a small Llama-like model in torch, a paged KV cache, and two ways of batching."""
