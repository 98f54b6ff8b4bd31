"""Sizing by the best measured point whose mean latency is within a limit: the usual method, shown beside ours.

The method of NVIDIA's course on sizing LLM inference systems, as arithmetic. `sizing.planner` is our own.
"""

from learn.course.cost import ApiPrice, ServerPrice, Tco, per_token, tco
from learn.course.demand import peak_from_mean, per_second, requests_per_s
from learn.course.fleet import CourseSizing, size
from learn.course.throughput import Goal, Throughput, best, throughput

__all__ = [
    "ApiPrice",
    "CourseSizing",
    "Goal",
    "ServerPrice",
    "Tco",
    "Throughput",
    "best",
    "peak_from_mean",
    "per_second",
    "per_token",
    "requests_per_s",
    "size",
    "tco",
    "throughput",
]
