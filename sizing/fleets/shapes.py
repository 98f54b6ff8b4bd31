"""The JSON shapes of a fleet that exists and of a fleet that several workloads share."""

from __future__ import annotations

from typing import Any

from sizing.fleets.existing import Existing
from sizing.fleets.sharing import SharedFleet


def existing_json(fleet: Existing) -> dict[str, Any]:
    """What a fleet that exists carries."""
    candidate = fleet.candidate
    return {
        "rate_per_s": fleet.rate_per_s,
        "limit_per_s": fleet.limit_per_s,
        "rate_low_per_s": fleet.low,
        "rate_high_per_s": fleet.high,
        "gpus": fleet.gpus,
        "unused_gpus": fleet.unused,
        "replicas": fleet.working + fleet.spare,
        "spare": fleet.spare,
        "tp": candidate.tp,
        "pp": candidate.pp,
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.predicted.utilization,
        "predicted": fleet.predicted.as_dict(),
        "binding": fleet.binding,
        "basis": candidate.basis,
        "source": candidate.source,
        "verified_by": fleet.predicted.method,
        "warnings": [*candidate.warnings, *fleet.predicted.warnings],
    }


def shared_json(fleet: SharedFleet) -> dict[str, Any]:
    """A fleet that several workloads share, with what each of them sees."""
    candidate = fleet.candidate
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "spare": fleet.spare,
        "tp": candidate.tp,
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "basis": candidate.basis,
        "working_replicas_apart": fleet.apart,
        "tightest": fleet.tightest.share.name,
        "workloads": [
            {
                "name": served.share.name,
                "rate_per_s": served.share.workload.rate_per_s,
                "priority": served.share.priority,
                "predicted": served.predicted.as_dict(),
                "binding": str(served.binding),
            }
            for served in fleet.served
        ],
        "verified_by": "simulation",
        "warnings": list(candidate.warnings),
    }
