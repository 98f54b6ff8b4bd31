"""From the peak and a throughput to instances, GPUs and servers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from learn.course.throughput import Throughput
from sizing.numbers import count_of, significant, with_unit
from sizing.workload import finite

GPUS_PER_SERVER = 8


@dataclass(frozen=True, slots=True)
class CourseSizing:
    """The answer by this method, which has no headroom, no spares and no random arrivals."""

    throughput: Throughput
    peak_per_s: float
    gpus_per_server: int = GPUS_PER_SERVER

    @property
    def instances(self) -> int:
        """Whole instances that carry the peak."""
        return math.ceil(self.peak_per_s / self.throughput.per_instance)

    @property
    def gpus(self) -> int:
        """GPUs of these instances: a multiple of TP."""
        return self.instances * self.throughput.point.gpus

    @property
    def servers(self) -> float:
        """Servers as a fraction: the peak over what a server full of instances carries."""
        return self.peak_per_s / self.throughput.per_gpus(self.gpus_per_server)

    @property
    def whole_servers(self) -> int:
        """Servers to buy."""
        return math.ceil(self.gpus / self.gpus_per_server)

    @property
    def sentence(self) -> str:
        """The arithmetic on one line."""
        of_server = count_of(self.gpus_per_server, "GPU")
        per = f"{significant(self.throughput.per_gpus(self.gpus_per_server))} per {of_server}"
        return (
            f"{significant(self.peak_per_s, 5)} requests/s at the peak ÷ {per} = "
            f"{with_unit(significant(self.servers, 2), 'servers')}: {count_of(self.instances, 'instance')} on "
            f"{count_of(self.gpus, 'GPU')}, {count_of(self.whole_servers, 'whole server')}"
        )


def size(throughput: Throughput, peak_per_s: float, gpus_per_server: int = GPUS_PER_SERVER) -> CourseSizing:
    """Instances, GPUs and servers for a peak. Raises ScenarioError for a peak or server size that is not above 0."""
    finite("peak requests/s", peak_per_s)
    finite("GPUs per server", gpus_per_server)
    return CourseSizing(throughput, peak_per_s, gpus_per_server)
