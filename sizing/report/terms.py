"""What a report says in words beside its numbers: what the count includes, what it assumes, what its terms mean."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.numbers import percent, significant
from sizing.plan import Fleet, Question

EXCLUDES = (
    "network and gateway: latencies begin when a request reaches the server and end when its last token leaves it",
    "tokenizing and other work on the CPU around the engine, unless it is in the measured points",
    "cold starts: loading weights, compiling engines, scaling up",
    "failures beyond the spare replicas, and load lost while a replica is replaced",
    "other workloads on the same GPUs",
    "servers, storage, network, power supply and staff in the cost",
)

DEFINITIONS = (
    ("TTFT", "time to first token: from the arrival of a request to its first output token, waiting included"),
    ("ITL", "inter-token latency: (E2E − TTFT) / (OSL − 1), one mean value for each request"),
    ("Gap", "time between two successive output tokens of a request; percentiles are of all requests' gaps together"),
    ("E2E", "end to end: from the arrival of a request to its last output token"),
    ("ISL, OSL", "input and output sequence length of a request, in tokens"),
    ("TP, PP", "tensor and pipeline parallel size: their product is the number of GPUs in a replica"),
    ("Replica", "one instance of the engine with its GPUs; spare replicas stand idle"),
    ("Capacity", "requests/s of one replica at which the first limit of the SLA is about to fail"),
    ("Headroom", "share of the capacity kept free: a replica is planned at (1 − headroom) × capacity"),
    ("Requests/s per GPU", "what a working replica is planned for over its GPUs, idle ones in the replica included"),
    ("90 % band", "the counts at both ends of what is known of the engine's times; half the doubt lies on either side"),
    ("Utilization", "planned load over the highest load that is stable"),
    ("Given", "typed in by whoever asked"),
    ("Measured", "a run on a server at this very point"),
    ("Fitted", "from a law fitted to measured points, inside the range that they cover"),
    ("Extrapolated", "from a law fitted to measured points, outside the range that they cover"),
    ("Estimated", "no run yet: from a database of kernel timings"),
    ("What-if", "a change that nobody has measured, computed from a law"),
)

ARRIVALS = {
    "poisson": "Requests arrive at random and independently of each other (Poisson).",
    "constant": "Requests arrive in even gaps.",
    "gamma": "Requests arrive in bursts: gaps are gamma distributed with a coefficient of variation of {cv:g}.",
    "batch": "Requests arrive in groups of {size}, the groups at random.",
}
ROUTING = {
    "random": "Each request goes to a replica at random.",
    "round_robin": "Requests go to the replicas in turn.",
    "power_of_two": "Each request goes to the less loaded of two replicas drawn at random.",
    "least_outstanding": "Each request goes to the replica with the fewest requests outstanding.",
}
BATCHING = {
    "chunked": "in-flight batching, prompts in chunks",
    "prefill_first": "in-flight batching, prompts first",
    "whole_prompt": "in-flight batching, whole prompts",
    "static": "static batching",
}


def includes(question: Question, fleet: Fleet) -> Iterator[str]:
    """What the count covers."""
    yield "waiting in the replica's queue, computing the prompt, and every decode step, at the planned load"
    yield "the limits of batch size and KV cache memory, by which requests wait or pause"
    if question.headroom:
        yield f"headroom: replicas are planned at {percent(1 - question.headroom)} of the load at which the SLA fails"
    if fleet.spare:
        yield f"{fleet.spare} spare {'replica' if fleet.spare == 1 else 'replicas'} on top of those that carry the load"


def assumptions(question: Question, fleet: Fleet) -> Iterator[str]:
    """What must be true of the workload and the servers for the count to hold."""
    workload, batching = question.workload, fleet.candidate.replica.batching
    lengths = workload.lengths
    yield ARRIVALS[workload.arrivals.kind].format(cv=workload.arrivals.cv, size=workload.arrivals.size)
    yield ROUTING[question.routing]
    yield f"The load of {significant(workload.rate_per_s)} requests/s lasts: latencies are those of a steady state."
    yield (
        "Every request has the same lengths."
        if lengths.fixed
        else f"Lengths are lognormal, with coefficients of variation of {lengths.isl_cv:g} (ISL) and "
        f"{lengths.osl_cv:g} (OSL), correlated by {lengths.correlation:g}."
    )
    if workload.prefix.tokens:
        yield (
            f"{workload.prefix.tokens:,} tokens of each prompt are shared, and found in the cache with a chance of "
            f"{percent(workload.prefix.hit_rate)}."
        )
    yield (
        f"Each replica runs {BATCHING[batching.policy]}: at most {batching.max_batch_size:,} requests at once, "
        f"{batching.token_budget:,} tokens an iteration, {batching.kv_tokens:,} tokens of KV cache."
    )
    yield "All replicas are alike, and no GPU is throttled or shared."
