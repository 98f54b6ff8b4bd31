"""How many servers a fleet of replicas fills: a replica's GPUs are in one server where they fit into one."""

from __future__ import annotations

from sizing import catalog
from sizing.errors import ScenarioError


def servers(replicas: int, gpus_per_replica: int, gpus_per_server: int) -> int:
    """Servers of `gpus_per_server` GPUs for so many replicas, each in as few servers as can hold it.

    GPUs left over in a server that are too few for a replica stay idle; a server that holds part of a large replica
    holds nothing else.

    >>> servers(9, gpus_per_replica=1, gpus_per_server=8), servers(3, 4, 8), servers(2, 16, 8), servers(3, 6, 8)
    (2, 2, 4, 3)
    """
    if min(gpus_per_replica, gpus_per_server) < 1 or replicas < 0:
        raise ScenarioError(
            f"servers need 1 GPU or more each and per replica, got {gpus_per_server} and {gpus_per_replica}"
        )
    if gpus_per_replica > gpus_per_server:
        return replicas * -(-gpus_per_replica // gpus_per_server)
    return -(-replicas // (gpus_per_server // gpus_per_replica))


def usual_server(gpu: str) -> int | None:
    """GPUs of the server in which this GPU usually comes; None for a GPU that is not in the catalogue."""
    known = catalog.gpus().get(gpu)
    return known.gpus_per_server if known else None
