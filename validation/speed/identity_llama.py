"""The published burst on Llama-2-7B and an H100, predicted by the day-zero law: nothing of it was measured here.

98 news articles of 799.66 tokens, summaries of 41.49 tokens, one fp16 engine of TensorRT-LLM 0.5, V1 and in-flight.
Its engine was built with packed prompts and, as no other was asked for, the builder's largest batch of 8. The machine
rented for the workshop has H100 cards on PCIe, of which the kernel timings tell nothing: their row is the law of the
SXM card with its times stretched by the data sheets' ratios of bandwidth and arithmetic.

That release overlaps by default (`enable_trt_overlap`): in-flight batching deals the requests to two micro-batches
whose passes take turns. Whether each had 8 places or both together is not told; both are predicted, as two engines of
half the speed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table

from sizing.engine import Batching, StepLaw
from sizing.estimate import estimate
from sizing.workload import Lengths
from validation.speed.identity_burst import ISL_CV, OSL_CV, drawn, engines, simulated

V1_S, IN_FLIGHT_S = 12.173, 9.316
V1_MEAN_S, IN_FLIGHT_MEAN_S = 6.297, 5.119
PUBLISHED_RATIO = V1_S / IN_FLIGHT_S
LENGTHS = Lengths(799.66, 41.49, ISL_CV, OSL_CV)
LONGEST = 2048
DRAWS = 20
ENGINE = Batching("static", max_batch_size=8, token_budget=8 * LONGEST, padded=False)
LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}
"""The config.json of meta-llama/Llama-2-7b-chat-hf, as far as it matters to speed."""
PCIE_READS, PCIE_ARITHMETIC = 3.35 / 2.0, 989 / 756
"""H100 SXM over H100 PCIe, NVIDIA's data sheets: memory bandwidth in TB/s, dense fp16 in TFLOP/s."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Means over the draws of lengths: seconds of both bursts and mean latencies; `ratios` of each draw, (draws,)."""

    static_s: float
    in_flight_s: float
    static_mean_s: float
    in_flight_mean_s: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return float(np.mean(self.ratios))


def day_zero_law() -> StepLaw:
    """Llama-2-7B on one H100 SXM in 16 bits, fitted to kernel timings. Raises SizingError where there are none."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_2_7B))
        found = estimate(folder, "h100_sxm", 1, "bf16", LENGTHS, max_batch_size=8, token_budget=ENGINE.token_budget)
    return found.replica.law


def on_pcie(law: StepLaw) -> StepLaw:
    """The law of the same chip with less memory bandwidth and arithmetic; what the host adds stays."""
    return law.with_values(
        weights_s=law.weights_s * PCIE_READS,
        kv_token_s=law.kv_token_s * PCIE_READS,
        token_s=law.token_s * PCIE_ARITHMETIC,
        attention_s=law.attention_s * PCIE_ARITHMETIC,
    )


def predict(
    law: StepLaw,
    batching: Batching = ENGINE,
    lengths: Lengths = LENGTHS,
    *,
    padded: bool = False,
    places: int | None = None,
) -> Predicted:
    """The burst under both rules, for `DRAWS` draws of its lengths.

    `padded`: V1 pads its prompts. `places`: in-flight in two micro-batches of so many requests each.
    """
    static, in_flight = engines(law, batching)
    static = replace(static, batching=replace(static.batching, padded=padded))
    if places is not None:
        in_flight = replace(in_flight, law=law.scaled(2), batching=replace(in_flight.batching, max_batch_size=places))
    turns = 1 if places is None else 2
    bursts = [drawn(lengths, seed, LONGEST) for seed in range(DRAWS)]
    pairs = [(simulated(static, burst), simulated(in_flight, burst, turns)) for burst in bursts]
    return Predicted(
        static_s=float(np.mean([v1.total_s for v1, _ in pairs])),
        in_flight_s=float(np.mean([fused.total_s for _, fused in pairs])),
        static_mean_s=float(np.mean([v1.mean_s for v1, _ in pairs])),
        in_flight_mean_s=float(np.mean([fused.mean_s for _, fused in pairs])),
        ratios=tuple(v1.total_s / fused.total_s for v1, fused in pairs),
    )


def cases(law: StepLaw) -> Iterator[tuple[str, Predicted]]:
    """What is predicted, then what each assumption matters: the same with one of them changed."""
    pcie = on_pcie(law)
    yield "H100 SXM, kernel timings", predict(law)
    yield "H100 PCIe, the same law stretched", predict(pcie)
    yield "  PCIe, two micro-batches of 8", predict(pcie, places=8)
    yield "  PCIe, two micro-batches of 4", predict(pcie, places=4)
    yield "  PCIe, outputs vary by 30 %", predict(pcie, lengths=replace(LENGTHS, osl_cv=0.3))
    yield "  PCIe, outputs vary by 50 %", predict(pcie, lengths=replace(LENGTHS, osl_cv=0.5))
    yield "  PCIe, at most 16 at once", predict(pcie, replace(ENGINE, max_batch_size=16))
    yield "  PCIe, at most 64 at once", predict(pcie, replace(ENGINE, max_batch_size=64))
    yield "  PCIe, V1 pads its prompts", predict(pcie, padded=True)


def table(law: StepLaw) -> Table:
    """Prediction beside publication."""
    found = Table("", "V1 s", "in-flight s", "ratio", "± draws", "error", "V1 mean s", "in-flight mean s")
    found.title = "98 prompts of 800 / 41 tokens at once, Llama-2-7B fp16 on an H100, at most 8 at once"
    published = (V1_S, IN_FLIGHT_S, PUBLISHED_RATIO, None, None, V1_MEAN_S, IN_FLIGHT_MEAN_S)
    found.add_row("published", *("" if value is None else f"{value:.2f}" for value in published))
    for name, one in cases(law):
        times = (one.static_s, one.in_flight_s, one.ratio, float(np.std(one.ratios)))
        means = (one.static_mean_s, one.in_flight_mean_s)
        error = f"{one.ratio / PUBLISHED_RATIO - 1:+.1%}"
        found.add_row(name, *(f"{value:.2f}" for value in times), error, *(f"{value:.2f}" for value in means))
    return found
