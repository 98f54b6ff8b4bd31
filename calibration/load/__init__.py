"""Putting load on a server over gRPC or HTTP, from processes of their own. Start with `shards.drive`."""
