"""Use the planner from a program: a plan, latencies with more and fewer replicas, and an SLA that nothing meets.

Run: python -m examples.library in the repository, python library.py where the package is installed
"""

import sizing

MODEL = "Qwen/Qwen3-32B"
RATE = 20.0  # requests/s


def main() -> None:
    """Print all three."""
    plan = sizing.plan(
        MODEL, gpus="h200_sxm", precisions="bf16", rate=RATE, isl=2000, osl=256, ttft="p95:1s", itl="p95:30ms"
    )
    best = plan.answer
    print(f"{best.gpus} GPUs: {best.replicas} replicas of {best.candidate.label}, basis {best.basis}")
    print(f"p95 TTFT {best.predicted.ttft.p95_s * 1e3:.0f} ms, p95 ITL {best.predicted.itl.p95_s * 1e3:.1f} ms")
    print(f"{best.binding_name} binds; 90 % band {best.gpus_low} to {best.gpus_high} GPUs")
    for fleet in plan.fleets:
        print(f"  {fleet.candidate.label}: {fleet.gpus} GPUs, {fleet.requests_per_s_per_gpu:.2f} requests/s per GPU")

    workload = sizing.Workload(sizing.Lengths(isl=2000, osl=256), rate_per_s=RATE)
    for working in (best.working - 1, best.working, best.working + 1):
        seen = sizing.predict(best.candidate.replica, workload, replicas=working)
        ttft_ms, itl_ms = 1e3 * seen.ttft.p95_s, 1e3 * seen.itl.p95_s
        print(f"{working} working replicas: p95 TTFT {ttft_ms:.0f} ms, p95 ITL {itl_ms:.1f} ms")

    try:
        sizing.plan(MODEL, gpus="h200_sxm", precisions="bf16", rate=RATE, isl=2000, osl=256, itl="p95:2ms")
    except sizing.NoFeasiblePlan as none:
        print(f"{none}; nearest: {none.rejected[0].why}")


if __name__ == "__main__":
    main()
