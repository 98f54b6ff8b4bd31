"""Load on a server over gRPC or HTTP, from processes of its own. Start with `pool.drive`."""
