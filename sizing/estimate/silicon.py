"""How measured servers differ from summed kernels: corrections of a day-zero law, and the scatter that remains.

A law fitted to kernel timings knows neither the host's part of an iteration nor the kernels of the release in use.
Measured closed loops show both on average: `data/laws/silicon.json` holds, for dense models and for mixtures of
experts, the effects of engine, GPU generation, precision, release and model, each shrunk towards the mean of those
above it, so that what was never measured gets the prior mean. The spread is that of servers left out of the fit, wider
where the model or GPU was never measured. Written by ``python -m validation.evidence.silicon_fit``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from sizing.catalog import Gpu, gpus
from sizing.engine import Policy, StepLaw
from sizing.engine_defaults import engine_defaults
from sizing.errors import CatalogueError, first_fault
from sizing.files import resource
from sizing.numbers import Floats

SILICON = resource("data/laws/silicon.json")
REMEDY = "take the file of this version"
KINDS = ("dense", "moe")
"""Kinds of model (`sizing.catalog.Model.kind`), each with effects of its own."""
EFFECTS = ("steps", "overhead", "sequence", "prompt", "prompt_step", "request")
"""Logarithms of factors: on all kernel times; on the overhead of an iteration, HOST_S included; on SEQUENCE_S; on what
prompt tokens take beyond `steps`; on what an iteration with a prompt costs beside, PROMPT_S included; on REQUEST_S."""
HOST_S, SEQUENCE_S, PROMPT_S, REQUEST_S = 0.5e-3, 10e-6, 5e-3, 30e-3
"""What the host adds where all effects are 0, in seconds: to an iteration, for each sequence in it, for a prompt in it,
and once to a request. Round figures, which the effects scale."""


class Shares(NamedTuple):
    """How much of a correction is applied to what every iteration takes, and to prompts and requests."""

    steps: float
    prompts: float


WHOLE = Shares(1.0, 1.0)
HALF, MIXTURES = Shares(0.5, 0.5), Shares(0.5, 0.8)
SHARES = {("trtllm", "dense"): Shares(1.0, 0.5)}
"""The shares by engine and kind of model that best predicted servers left out of the fit, in either half of the groups;
HALF for all other dense models. Whole corrections of their steps would predict vLLM's dense servers a little better,
but newer ones, on an H200, 9 to 24 % too slow; with half they are predicted within 6 %."""
FARTHEST = 3.0
"""Most that the sum of the effects of one kind may be, either way."""


def estimated_policy(engine: str) -> Policy:
    """How a server is assumed to form its iterations: SGLang runs prompts apart, as by its default; all others take
    them in chunks beside the decodes, which is vLLM's default and what `deploy` tells TensorRT-LLM to do.

    >>> estimated_policy("sglang"), estimated_policy("trtllm")
    ('prefill_first', 'chunked')
    """
    return "prefill_first" if engine_defaults(engine).policy == "prefill_first" else "chunked"


@dataclass(frozen=True, slots=True)
class Server:
    """What decides how a server differs from its kernels. `kind`: dense or moe; `gpu`: a name of the catalogue; an
    unknown `engine_version` is empty, and so is an unknown `model`, which is a shape (`sizing.catalog.Model.shape`)."""

    engine: str
    gpu: str
    precision: str
    kind: str
    engine_version: str = ""
    model: str = ""

    @property
    def lookahead_steps(self) -> float:
        """Steps that the server is assumed to schedule ahead: as by its defaults, TensorRT-LLM none. Most measured
        servers of TensorRT-LLM ran release candidates of 1.0, whose TTFT is predicted worse with it."""
        if self.engine == "trtllm":
            return 0.0
        return engine_defaults(self.engine, self.engine_version, self.gpu).lookahead_steps

    @property
    def generation(self) -> str:
        """hopper, blackwell, or the GPU's own name: no others were measured."""
        chip = gpus().get(self.gpu)
        return generation(chip) if chip else self.gpu

    @property
    def group(self) -> str:
        """The class that spreads are given for: dense, moe_hopper (all before Blackwell) or moe_blackwell."""
        if self.kind == "dense":
            return "dense"
        return "moe_blackwell" if self.generation == "blackwell" else "moe_hopper"

    @property
    def levels(self) -> Mapping[str, str]:
        """The effects that add up, by level, the mean of all servers first."""
        return {
            "all": "",
            "kind": self.kind,
            "engine": self.engine,
            "generation": self.generation,
            "precision": self.precision,
            "engine, kind": f"{self.engine} {self.kind}",
            "engine, generation": f"{self.engine} {self.generation}",
            "class": f"{self.engine} {self.generation} {self.kind} {self.precision}",
            "gpu": self.gpu,
            "version": f"{self.engine} {self.engine_version}",
            "model": self.model,
        }


def generation(chip: Gpu) -> str:
    """hopper, blackwell, or the GPU's own name where it is of neither."""
    if "fp4" in chip.flops_per_s:
        return "blackwell"
    return "hopper" if chip.id.startswith(("h100", "h200")) else chip.id


@dataclass(frozen=True, slots=True)
class Silicon:
    """`effects`: by kind of model, level and name, values of EFFECTS. `spread`: standard error in logarithms, by what a
    server shares with the measured ones ("gpu": all but the GPU, "model": all but the model, "both": only the pair is
    new), group and metric. `models`, `gpus`: what was measured."""

    effects: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]]
    spread: Mapping[str, Mapping[str, Mapping[str, float]]]
    models: tuple[str, ...]
    gpus: tuple[str, ...]

    def effect(self, server: Server) -> Floats:
        """Sum of the effects of a server's levels, shape (6,); a name that was not measured adds nothing."""
        none = (0.0,) * len(EFFECTS)
        known = self.effects[server.kind]
        parts = [known.get(level, {}).get(name, none) for level, name in server.levels.items()]
        return np.asarray(np.clip(np.sum(parts, axis=0), -FARTHEST, FARTHEST))

    def sigma(self, server: Server, metric: str = "itl") -> float:
        """Standard error of a prediction for a server, in logarithms: larger if its model or GPU was not measured."""
        new = [
            name for name, known in (("model", self.models), ("gpu", self.gpus)) if getattr(server, name) not in known
        ]
        return max(self.spread[name][server.group][metric] for name in ("both", *new))


_FILE = TypeAdapter(Silicon)


@cache
def silicon() -> Silicon:
    """What comes with the program. Raises CatalogueError if the file is faulty."""
    try:
        found = _FILE.validate_json(SILICON.read_bytes())
    except ValidationError as error:
        raise CatalogueError(f"{SILICON}: {first_fault(error, 'the file')}; {REMEDY}") from None
    except OSError as error:
        raise CatalogueError(f"{SILICON}: {error.strerror}; {REMEDY}") from None
    if missing := set(KINDS) - found.effects.keys():
        raise CatalogueError(f"{SILICON}: has no effects of {', '.join(sorted(missing))}; {REMEDY}")
    return found


def corrected(law: StepLaw, server: Server) -> tuple[StepLaw, float]:
    """The law of the kernels as servers of its class were measured, and the relative standard error of its times per
    output token.

    >>> kernels = StepLaw(weights_s=5e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=50e-9)
    >>> seen = Server("vllm", "h200_sxm", "fp8", "dense", model="dense 7.055e+10 80 64")
    >>> law, sigma = corrected(kernels, seen)
    >>> law.decode_s(1, 0) > 4e-3 and sigma <= corrected(kernels, Server("vllm", "a100_sxm", "bf16", "dense"))[1]
    True
    """
    known = silicon()
    return with_effects(law, known.effect(server), shares_of(server)), known.sigma(server)


def shares_of(server: Server) -> Shares:
    """How much of the corrections of a server is applied."""
    return SHARES.get((server.engine, server.kind), MIXTURES if server.kind == "moe" else HALF)


def with_effects(law: StepLaw, effect: Floats, shares: Shares = WHOLE) -> StepLaw:
    """The law corrected by `effect`, values of EFFECTS: what the host adds is never negative. Each coefficient moves
    its share of the way from the kernels' value to the corrected one."""
    steps, overhead, sequence, prompt, prompt_step, request = (math.exp(value) for value in effect)
    of_steps = {
        "weights_s": law.weights_s * steps,
        "overhead_s": (law.overhead_s * steps + HOST_S) * overhead,
        "sequence_s": law.sequence_s * steps + SEQUENCE_S * sequence,
        "kv_token_s": law.kv_token_s * steps,
    }
    of_prompts = {
        "token_s": law.token_s * steps * prompt,
        "attention_s": law.attention_s * steps * prompt,
        "prefill_s": (law.prefill_s * steps * prompt + PROMPT_S) * prompt_step,
        "request_s": REQUEST_S * request,
    }
    moved = {
        name: (1 - share) * getattr(law, name) + share * whole_s
        for share, part in zip(shares, (of_steps, of_prompts), strict=True)
        for name, whole_s in part.items()
    }
    return law.with_values(**moved)
