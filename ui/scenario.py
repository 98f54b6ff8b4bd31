"""The scenario: what the form shows and what is computed, one frozen value, with the range of every field."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from sizing.analyses.daily import HOURS, peak_over_mean
from sizing.candidates import Choice
from sizing.catalog import Layout
from sizing.question import Question, Range
from sizing.token_law import TokenLaw
from sizing.trace import HOUR_S, MINUTE_S, Trace
from sizing.workload import (
    METRICS,
    OF_REQUESTS,
    Arrivals,
    Lengths,
    Limit,
    Metric,
    Prefix,
    Routing,
    Sessions,
    ShareOfRequests,
    Sla,
    Workload,
)

TP = Range(1, 1024, "GPUs")
OF_SERVER = Range(1, 1024, "GPUs")
FLEET = Range(1, 100_000, "GPUs")
OF_PEAK = Range(0, 100, "% of the peak")


USUAL: dict[Metric, Limit] = {
    "ttft": Limit("ttft", 95, 1.0),
    "itl": Limit("itl", 95, 0.03),
    "gap": Limit("gap", 99, 0.1),
    "e2e": Limit("e2e", 95, 20.0),
}
"""The limit that a toggle of the form brings back."""
USUAL_SHARES: dict[ShareOfRequests, Limit] = {"goodput": Limit.goodput(99), "rejected": Limit.rejected(1)}
"""The same of limits in per cent of the requests."""
POISSON = Arrivals()

DAYS: dict[str, tuple[float, ...]] = {
    "Flat": (100.0,) * HOURS,
    "Office hours": tuple(
        map(float, (8, 6, 5, 5, 6, 10, 20, 45, 80, 95, 100, 95, 80, 85, 95, 95, 85, 65, 40, 30, 22, 18, 14, 10))
    ),
    "Evening peak": tuple(
        map(float, (35, 22, 14, 10, 8, 9, 14, 24, 34, 40, 44, 48, 52, 52, 50, 52, 58, 68, 80, 92, 100, 96, 80, 55))
    ),
}
"""Hourly loads of a day from midnight, in percent of the peak: an invented example, not measured."""


def example_trace(seed: int = 1) -> Trace:
    """Requests of a day with office hours, invented like the days: an example of recorded traffic.

    The rate of a minute is that of its hour times a gamma variate; in one minute of a hundred it is three times as
    high. Users come at random, each with one request or a few within two seconds; lengths are lognormal.
    """
    rng = np.random.default_rng(seed)
    of_hour = EXAMPLE_PEAK_PER_S * np.array(DAYS["Office hours"]) / 100
    minutes = int(HOURS * HOUR_S / MINUTE_S)
    of_minute = np.interp(np.arange(minutes) / 60, np.arange(HOURS + 1), [*of_hour, of_hour[0]])
    of_minute *= rng.gamma(8.0, 1 / 8, minutes) * np.where(rng.random(minutes) < 0.01, 3.0, 1.0)
    users = rng.poisson(of_minute * MINUTE_S / REQUESTS_AT_ONCE)
    came_s = (np.repeat(np.arange(minutes), users) + rng.random(users.sum())) * MINUTE_S
    each = rng.geometric(1 / REQUESTS_AT_ONCE, len(came_s))
    arrival_s = np.sort(np.repeat(came_s, each) + rng.uniform(0, 2, each.sum()))
    isl = np.clip(rng.lognormal(np.log(900), 0.9, len(arrival_s)), 10, 16_000)
    osl = np.clip(rng.lognormal(np.log(300), 0.7, len(arrival_s)), 2, 2_000)
    within = arrival_s < HOURS * HOUR_S
    return Trace(arrival_s[within], isl[within].astype(np.int32), osl[within].astype(np.int32))


EXAMPLE_PEAK_PER_S = 12.0
REQUESTS_AT_ONCE = 1.5
"""Of a user of the example, on average."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, as the form holds it. The defaults are the answer that the first screen opens on.

    Empty `precisions` or `engines`, neither `tps` nor `layouts` = any; empty `gpus` = those that were measured. Lengths
    in tokens, `isl_cv` and `osl_cv` are standard deviation over mean; `isl_law` and `osl_law`, which imply both, are
    laws other than lognormal. A limit that is None is not asked for; one without a percentile counts for `goodput`
    alone. `queue_limit` and `queue_timeout_s`: None = all requests wait as long as they must. `headroom` is a share.
    `prefix_share`: of the mean prompt that all requests have in common, found in the KV cache with chance `prefix_hit`.
    `peak_factor`: the load over its mean, which costs per token are for. `gpus_per_server`: None = as the GPU comes.
    `fleet_gpus` is asked about by the inverse question; `day` are 24 hourly loads from midnight, the busiest of which
    stands for the load, with a `day_peak_factor` of their own.
    """

    model: str = "Qwen/Qwen3-32B"
    gpus: tuple[str, ...] = ("h200_sxm", "h100_sxm")
    precisions: tuple[str, ...] = ()
    tps: tuple[int, ...] = ()
    engines: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    rate_per_s: float = 20.0
    isl: int = 2000
    isl_cv: float = 0.0
    osl: int = 256
    osl_cv: float = 0.0
    ttft: Limit | None = USUAL["ttft"]
    itl: Limit | None = USUAL["itl"]
    e2e: Limit | None = None
    gap: Limit | None = None
    headroom: float = 0.2
    spare: int = 1
    routing: Routing = "random"
    arrivals: Arrivals = POISSON
    price_per_gpu_hour: float | None = None
    use_points: bool = True
    prefix_share: float = 0.0
    prefix_hit: float = 1.0
    peak_factor: float = 1.0
    gpus_per_server: int | None = None
    fleet_gpus: int = 16
    day: tuple[float, ...] = DAYS["Office hours"]
    isl_law: TokenLaw | None = None
    osl_law: TokenLaw | None = None
    goodput: Limit | None = None
    rejected: Limit | None = None
    queue_limit: int | None = None
    queue_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for side in ("isl", "osl"):
            if (law := getattr(self, f"{side}_law")) is not None:
                object.__setattr__(self, side, max(1, round(law.mean)))
                object.__setattr__(self, f"{side}_cv", law.cv)

    @property
    def lengths(self) -> Lengths:
        """Tokens of the requests."""
        isl, osl = self.isl_law, self.osl_law
        means = (self.isl if isl is None else isl.mean, self.osl if osl is None else osl.mean)
        return Lengths(means[0], means[1], self.isl_cv, self.osl_cv, isl_law=isl, osl_law=osl)

    @property
    def choice(self) -> Choice:
        """What may be bought."""
        return Choice(self.gpus, self.precisions, self.tps, engines=self.engines, layouts=self.layouts)

    @property
    def question(self) -> Question:
        """The question for the planner. Raises ScenarioError when no limit is set."""
        return Question(
            model=self.model,
            workload=Workload(
                *(self.lengths, self.rate_per_s, self.arrivals, self.prefix),
                queue_timeout_s=self.queue_timeout_s or math.inf,
                queue_limit=self.queue_limit or 0,
            ),
            sla=Sla(self.ttft, self.itl, self.e2e, self.gap, self.goodput, self.rejected),
            routing=self.routing,
            headroom=self.headroom,
            spare=self.spare,
            price_per_gpu_hour=self.price_per_gpu_hour,
            peak_factor=self.peak_factor,
        )

    @property
    def prefix(self) -> Prefix:
        """The part of the prompts that is shared, in tokens."""
        tokens = round(self.prefix_share * self.isl)
        return Prefix(tokens, self.prefix_hit) if tokens else Prefix()

    @property
    def day_per_s(self) -> tuple[float, ...]:
        """Requests/s hour by hour: the day's shape, its busiest hour at the load planned for."""
        return tuple(self.rate_per_s * load / max(self.day) for load in self.day)

    @property
    def day_peak_factor(self) -> float:
        """The load in the day's busiest hour over its mean."""
        return peak_over_mean(self.day)

    @property
    def without_goodput(self) -> Scenario:
        """The same without the limit on goodput: a limit that counted for it alone has its usual percentile."""
        alone = {
            metric: replace(limit, percentile=USUAL[metric].percentile)
            for metric in METRICS
            if (limit := getattr(self, metric)) is not None and not limit.percentile
        }
        return replace(self, goodput=None, **alone)

    @property
    def missing(self) -> str:
        """What must still be chosen before there is a question; empty when nothing is."""
        if all(getattr(self, metric) is None for metric in (*METRICS, "rejected")):
            return "Set at least one limit"
        if self.goodput and all(getattr(self, metric) is None for metric in OF_REQUESTS):
            return "Set a limit on TTFT, ITL or E2E, which goodput needs"
        if self.rejected and not (self.queue_limit or self.queue_timeout_s):
            return "Set a queue limit or timeout under More, by which requests are rejected"
        if not self.gpus and not self.use_points:
            return "Choose at least one GPU"
        return ""


@dataclass(frozen=True, slots=True)
class Preset:
    """A use of language models: its typical lengths and limits, all at p95, to be replaced by one's own.

    `source`: where the figures are from, and which of them are assumptions. `sessions`: what its conversations or tasks
    are like where sessions are planned, None where nothing is known of them; their rate is not used.
    """

    isl: int
    isl_cv: float
    osl: int
    osl_cv: float
    ttft: Limit | None = None
    itl: Limit | None = None
    e2e: Limit | None = None
    gap: Limit | None = None
    isl_law: None = None
    osl_law: None = None
    sessions: Sessions | None = None
    source: str = ""

    def matches(self, scenario: Scenario) -> bool:
        """True while the scenario still has every value of the preset; sessions are no part of it."""
        of_requests = (field.name for field in fields(self) if field.name not in ("sessions", "source"))
        return all(getattr(scenario, name) == getattr(self, name) for name in of_requests)


CHATS = Sessions(
    rate_per_s=1.0,
    turns=3.5,  # ServeGen
    first_tokens=296,  # WildChat, as the next two
    user_tokens=296,
    output_tokens=441,
    first_cv=1.0,
    user_cv=1.0,
    output_cv=0.7,
    think_s=100.0,  # ServeGen
    system_tokens=500,
)
TASKS = Sessions(
    rate_per_s=1.0,
    turns=31.0,  # GitHub Copilot: 9,310,255 calls in 301,026 sessions
    first_tokens=2000,
    user_tokens=1600,  # TraceLab, as its variation: 1,600 on average, 793 at the median, behind 64k to 128k tokens
    output_tokens=527,  # GitHub Copilot: 4.91 billion tokens in as many calls
    first_cv=1.0,
    user_cv=1.75,
    output_cv=1.0,
    think_s=5.0,
    system_tokens=5000,
)
PRESETS = {
    "Chat": Preset(
        *(1190, 0.6, 210, 1.3),
        ttft=Limit("ttft", 95, 1.0),
        itl=Limit("itl", 95, 0.05),
        sessions=CHATS,
        source="medians of 1,020 tokens in and 129 out in Azure's conversations (Patel and others, Splitwise, ISCA "
        "2024, https://arxiv.org/abs/2311.18677). In sessions 3.5 turns, 100 s apart (Xiang and others, ServeGen, "
        "NSDI 2026, "
        "https://arxiv.org/abs/2505.09999), of 296 tokens and answers of 441 (Zhao and others, WildChat, ICLR 2024, "
        "https://arxiv.org/abs/2405.01470). Assumptions: variations, system prompt, limits",
    ),
    "RAG": Preset(
        *(6000, 0.4, 300, 0.6),
        ttft=Limit("ttft", 95, 2.0),
        itl=Limit("itl", 95, 0.05),
        source="assumptions throughout. One request of a university's service has 3,861 tokens in and 127 out (Wang "
        "and others, RAGPulse, 2025, https://github.com/flashserve/RAGPulse)",
    ),
    "Summarise": Preset(
        *(8000, 0.6, 400, 0.4),
        e2e=Limit("e2e", 95, 30.0),
        source="assumptions throughout",
    ),
    "Code": Preset(
        *(2020, 0.9, 28, 1.9),
        ttft=Limit("ttft", 95, 0.5),
        e2e=Limit("e2e", 95, 3.0),
        source="medians of 1,500 tokens in and 13 out in Azure's code completion (Patel and others, Splitwise, ISCA "
        "2024, https://arxiv.org/abs/2311.18677). Assumptions: variations, limits",
    ),
    "Agent": Preset(
        *(12000, 0.8, 527, 1.0),
        ttft=Limit("ttft", 95, 4.0),
        e2e=Limit("e2e", 95, 45.0),
        sessions=TASKS,
        source="527 tokens out, and in sessions 31 calls of the model, as in GitHub Copilot's coding agents (Azure "
        "Public Dataset, 2026, https://github.com/Azure/AzurePublicDataset); 1,600 new tokens a call (Zhu and others, "
        "TraceLab, 2026, https://arxiv.org/abs/2606.30560). Assumptions: 12,000 tokens in, far below the 67,800 of "
        "Copilot, which few open models take; variations, first prompt, system prompt, 5 s of a tool, limits",
    ),
    "Reasoning": Preset(
        *(296, 1.0, 3500, 1.0),
        ttft=Limit("ttft", 95, 2.0),
        itl=Limit("itl", 95, 0.04),
        source="296 tokens in (Zhao and others, WildChat, ICLR 2024, https://arxiv.org/abs/2405.01470), out 8 times "
        "its 441, which is what reasoning adds on average (Emberson and others, Epoch AI, 2025, "
        "https://epoch.ai/data-insights/output-length); a question of AIME takes DeepSeek-R1 12,000 (model card of "
        "DeepSeek-R1-0528, 2025). Assumptions: variations, limits",
    ),
}
"""Means that stand for published medians are those of a lognormal law with the variation beside them."""
