"""The client commands of the TensorRT-LLM backend, `benchmark_core_model` and `identity_test`, and `compare`."""
