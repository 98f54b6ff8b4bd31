"""SGLang on this machine's CPU, at the pace of a GPU: its scheduler, cache, servers and metrics, not its kernels."""
