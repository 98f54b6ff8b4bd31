"""Keeps doctest collection away from the programs that run only inside Triton."""

collect_ignore_glob = ["programs/*"]
