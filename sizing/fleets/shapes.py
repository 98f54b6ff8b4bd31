"""The JSON shapes of a fleet that exists and of a fleet that several workloads share."""

from __future__ import annotations

from typing import Any

from sizing.cost import Cost, cost_at, cost_json
from sizing.fleets.existing import Existing
from sizing.fleets.sharing import SharedFleet, Terms


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
        "basis": fleet.basis,
        "source": candidate.source,
        "verified_by": fleet.predicted.method,
        "warnings": list(fleet.warnings),
    }


def shared_json(fleet: SharedFleet, terms: Terms) -> dict[str, Any]:
    """A fleet that several workloads share, with what each of them sees; a count without a band (null)."""
    candidate, price = fleet.candidate, terms.price_of(fleet.candidate.gpu)
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "spare": fleet.spare,
        "tp": candidate.tp,
        "gpu": candidate.gpu,
        "model": candidate.model,
        "precision": candidate.precision,
        "basis": fleet.basis,
        "source": candidate.source,
        "gpus_low": None,
        "gpus_high": None,
        "rate_per_s": fleet.rate_per_s,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.utilization,
        **({} if price is None else cost_json(shared_cost(fleet, price))),
        "working_replicas_apart": fleet.apart,
        "tightest": fleet.tightest.share.name,
        "workloads": [
            {
                "name": served.share.name,
                "rate_per_s": served.share.workload.rate_per_s,
                "priority": served.share.priority,
                "predicted": served.predicted.as_dict(),
                "binding": str(served.binding),
                "warnings": list(served.predicted.warnings),
            }
            for served in fleet.served
        ],
        "verified_by": "simulation",
        "warnings": list(fleet.warnings),
    }


def shared_cost(fleet: SharedFleet, price: float) -> Cost:
    """What a shared fleet costs at this price of a GPU-hour."""
    return cost_at(price * fleet.gpus, fleet.rate_per_s, fleet.output_tokens_per_s)
