"""How the GPUs of a replica share a model: tensor, pipeline, attention-data and expert parallelism, and what each makes
of the law of one pass through the model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sizing.catalog import BITS, Gpu, Model, Precision
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.workload import Lengths

MOST_WAYS = 1024
"""GPUs along one kind of parallelism; layouts in use stay below."""


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """`tp` GPUs share every matrix; `pp` stages of those hold consecutive layers; `dp` ranks of those compute attention
    for requests of their own and meet in the experts, which are split `ep` ways whole and the rest of the way by
    matrix. A dense model has `dp` and `ep` 1.

    >>> Layout(tp=2, dp=4, ep=8).gpus, str(Layout(tp=2, dp=4, ep=8)), str(Layout(dp=8, ep=8)), str(Layout(4, 2))
    (8, 'TP2 DP4 EP8', 'DP8 EP8', 'TP4 PP2')
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep"):
            if not 1 <= getattr(self, name) <= MOST_WAYS:
                raise ScenarioError(f"{name} of a layout must be from 1 to {MOST_WAYS}, got {getattr(self, name)}")
        if self.tp * self.dp % self.ep:
            raise ScenarioError(f"layout {self}: {self.tp * self.dp} GPUs do not split experts {self.ep} ways")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def lanes(self) -> int:
        """Batches that a replica works on at once: one a stage and one a rank."""
        return self.pp * self.dp

    def __str__(self) -> str:
        ways = {"TP": self.tp, "PP": self.pp, "DP": self.dp, "EP": self.ep}
        shown = [f"{name}{count}" for name, count in ways.items() if count > 1]
        return " ".join(shown) or "TP1"

    def as_dict(self) -> dict[str, int]:
        """The keys of JSON answers."""
        return {"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep}

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout of a word such as ``tp8``, ``tp4pp2``, ``dp8ep8`` or ``TP2 DP4 EP8``; else ScenarioError.

        >>> Layout.parse("tp2dp4ep8") == Layout(tp=2, dp=4, ep=8), Layout.parse("TP4 PP2").gpus
        (True, 8)
        """
        word = "".join(text.casefold().split())
        parts = re.findall(r"(tp|pp|dp|ep)(\d{1,4})", word)
        ways = dict(parts)
        if not parts or "".join(map("".join, parts)) != word or len(ways) < len(parts):
            raise ScenarioError(f"layout {text!r}: write it as tp8, tp4pp2, tp8ep8 or dp8ep8")
        return cls(**{name: int(count) for name, count in ways.items()})


TENSOR_PARALLEL = (1, 2, 4, 8)
BUS_BYTES_PER_S = 1e11
"""Below this, GPUs meet over a bus, where stages exchange far less than tensor parallelism does."""
LARGE = 0.4
"""Share of the memory of eight GPUs: models whose weights take more of it are also spread over several servers."""


def layouts(model: Model, gpu: Gpu, precision: Precision) -> list[Layout]:
    """The layouts that engines are run with, smallest first, tensor parallelism before others.

    On up to eight GPUs, a server or part of a rack, tensor parallelism, beside it stages where the link is slow; of
    mixtures also experts split whole, with either tensor or data-parallel attention. Beyond, for models that take LARGE
    of eight: the same on 16, two and four stages of eight, and experts over 32.
    """
    most, weight_bytes = TENSOR_PARALLEL[-1], model.parameters * BITS[precision] / 8
    large = weight_bytes > LARGE * most * gpu.memory_bytes
    ways = (*TENSOR_PARALLEL, 2 * most) if large else TENSOR_PARALLEL
    found = [Layout(tp) for tp in ways]
    if gpu.link_bytes_per_s < BUS_BYTES_PER_S:
        found += [Layout(tp, pp) for tp in TENSOR_PARALLEL for pp in (2, 4, 8) if tp * pp <= most]
    if model.kind == "moe":
        for gpus in ways[1:]:
            found += [Layout(gpus, ep=gpus), Layout(dp=gpus, ep=gpus)]
        found += [Layout(2, dp=most // 2, ep=most), Layout(most // 2, dp=2, ep=most)]
    if large:
        found += [Layout(most, pp) for pp in (2, 4)]
        found += [Layout(dp=4 * most, ep=4 * most)] if model.kind == "moe" else []
    splits = [layout for layout in dict.fromkeys(found) if model.heads % layout.tp == 0]
    return sorted(splits, key=lambda each: (each.gpus, each.dp, each.pp, each.ep))


def of_layout(replica: Replica, layout: Layout, model: Model, lengths: Lengths) -> Replica:
    """The replica of all lanes, from that of one: the law of a whole pass through the model with one lane's batch.

    The lanes go on in step, each with an equal part of the sequences, so a law of all tokens has the part of each in
    every lane. What one prompt adds is not divided: it runs in one lane. Other ranks wait for it as long as attention
    and the weights that every token passes take, beside the experts, which all GPUs share; that part is booked on
    iterations with a prompt, for a chunk of the mean length. Other stages do not wait, so a prompt's own way through
    them is booked on its request. Ranks with unequal batches, and bubbles of a pipeline with fewer requests than
    stages, are left out.
    """
    if layout.lanes == 1:
        return replica
    law, batching, lanes = replica.law, replica.batching, layout.lanes
    chunk = min(lengths.isl, batching.token_budget)
    shared = 1 - routed_share(model)
    alone = 1 - 1 / layout.dp
    waits_s = alone * (law.token_s * chunk * shared + law.attention_s * chunk * (lengths.isl - chunk / 2))
    through_s = (1 - 1 / layout.pp) * (law.token_s * lengths.isl + law.attention_s * lengths.isl**2 / 2)
    decay = law.unread_decay ** (1 / layout.dp)
    whole = law.with_values(
        token_s=law.token_s / lanes,
        sequence_s=law.sequence_s / lanes,
        kv_token_s=law.kv_token_s / lanes,
        attention_s=law.attention_s / lanes,
        prefill_s=law.prefill_s + waits_s,
        request_s=law.request_s + through_s,
        unread=min(1.0, law.unread / decay ** (layout.dp - 1)) if decay else law.unread,
        unread_decay=decay,
    )
    together = replace(
        batching,
        max_batch_size=batching.max_batch_size * layout.dp,
        token_budget=batching.token_budget * lanes,
        kv_tokens=batching.kv_tokens * layout.dp,
    )
    return replace(replica, law=whole, batching=together)


def routed_parameters(model: Model) -> float:
    """Parameters of the experts among which tokens are routed; 0 for a dense model.

    >>> from sizing.catalog import models
    >>> round(routed_parameters(models()["deepseek-ai/DeepSeek-R1"]) / 1e9)
    655
    """
    return (model.parameters - model.active_parameters) / model.unrouted if model.unrouted else 0.0


def routed_share(model: Model) -> float:
    """Share of a token's arithmetic that is in the experts it was routed to."""
    return min(1.0, routed_parameters(model) * (1 - model.unrouted) / model.active_parameters)
