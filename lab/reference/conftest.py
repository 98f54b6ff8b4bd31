"""Keeps doctest collection away from files that run only in the reference environment: they import torch and Triton."""

collect_ignore_glob = ["engine/*", "models/*"]
