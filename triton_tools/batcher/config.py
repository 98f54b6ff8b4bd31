"""What a model's configuration says about batching, with the checks that Triton makes when it loads the model.

Names and units are Triton's: delays and timeouts are whole microseconds, 0 means none, and priority 1 is the highest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sizing.errors import ScenarioError

TimeoutAction = Literal["REJECT", "DELAY"]
Strategy = Literal["direct", "oldest"]
MOST_ROWS = 100_000
MOST_INSTANCES = 10_000
"""Bounds of what is simulated: a larger number is almost certainly a typo, and would exhaust the memory."""
DEFAULT_IDLE_US = 1_000_000
"""`max_sequence_idle_microseconds` if the configuration leaves it at 0."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """ModelQueuePolicy: what becomes of requests that wait too long (`timeout_us`) or are too many (`max_size`).

    A request's own timeout counts only with `allow_override`, and only if it is shorter than `timeout_us`: it has no
    effect if `timeout_us` is 0.
    """

    timeout_action: TimeoutAction = "REJECT"
    timeout_us: int = 0
    allow_override: bool = False
    max_size: int = 0

    def timeout_of(self, asked_us: int) -> int:
        """Microseconds that a request with the timeout `asked_us` (0: none) may wait; 0: no limit."""
        if self.allow_override and 0 < asked_us < self.timeout_us:
            return asked_us
        return self.timeout_us


DEFAULT_POLICY = QueuePolicy()


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """ModelDynamicBatching. Without `preferred` sizes, Triton prefers the maximum batch size alone."""

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority: int = 0
    policy: QueuePolicy = DEFAULT_POLICY
    level_policies: tuple[tuple[int, QueuePolicy], ...] = ()

    def level_of(self, priority: int) -> int:
        """The priority level of a request: the default level for priority 0, or for one that does not exist."""
        return priority if 1 <= priority <= self.priority_levels else self.default_priority

    def policy_of(self, level: int) -> QueuePolicy:
        """The queue policy of a level; without levels, the default for all."""
        return dict(self.level_policies).get(level, self.policy) if self.priority_levels else self.policy

    @property
    def prefetches(self) -> bool:
        """Whether batches are formed ahead of free instances: only without levels, and if no request can be refused."""
        plain = self.policy.timeout_us == 0 and not self.policy.allow_override and self.policy.max_size == 0
        return self.priority_levels == 0 and plain


@dataclass(frozen=True, slots=True)
class Control:
    """A control input of the sequence batcher: the tensor `name` carries `kind` (START, END, READY or CORRID).

    `values` are what the tensor holds for no and for yes; None for CORRID, which holds the correlation id.
    """

    name: str
    kind: str
    values: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """ModelSequenceBatching. `max_candidates`, `preferred` and `preserve_ordering` belong to the strategy oldest,
    `minimum_utilization` to direct; `delay_us` is that of the chosen strategy.
    """

    strategy: Strategy = "direct"
    idle_us: int = DEFAULT_IDLE_US
    delay_us: int = 0
    minimum_utilization: float = 0.0
    max_candidates: int = 0
    preferred: tuple[int, ...] = ()
    preserve_ordering: bool = False
    iterative: bool = False
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelBatching:
    """How one model's requests are batched: by one of the batchers; without a batcher, each request is one execution.

    Raises:
        ScenarioError: Triton would not load this configuration; the line names the field.
    """

    name: str = "model"
    max_batch_size: int = 1
    instances: int = 1
    dynamic: DynamicBatching | None = field(default_factory=DynamicBatching)
    sequence: SequenceBatching | None = None
    strategy_path: str = ""

    def __post_init__(self) -> None:
        if self.max_batch_size < 0:
            raise ScenarioError(f"max_batch_size must be 0 or more, got {self.max_batch_size}")
        if self.max_batch_size > MOST_ROWS:
            raise ScenarioError(f"max_batch_size must be at most {MOST_ROWS:,} here, got {self.max_batch_size:,}")
        if self.instances < 1:
            raise ScenarioError(f"instance_group: count must be at least 1, got {self.instances}")
        if self.instances > MOST_INSTANCES:
            raise ScenarioError(
                f"instance_group: at most {MOST_INSTANCES:,} instances are simulated, got {self.instances:,}"
            )
        if self.dynamic and self.sequence:
            raise ScenarioError("dynamic_batching and sequence_batching exclude each other: keep one")
        if self.dynamic:
            _check_preferred("dynamic_batching", self.dynamic.preferred, self.rows)
            _check_levels(self.dynamic)
            _check_ordering(self.dynamic)
        if self.sequence:
            _check_sequence(self.sequence, self.rows)

    @property
    def rows(self) -> int:
        """Most rows in one execution: max_batch_size, or 1 for a model that does not batch (0)."""
        return max(1, self.max_batch_size)


def _check_preferred(where: str, sizes: Iterable[int], most: int) -> None:
    for size in sizes:
        if not 0 < size <= most:
            raise ScenarioError(f"{where}.preferred_batch_size {size}: must be from 1 to max_batch_size, {most}")


def _check_levels(batching: DynamicBatching) -> None:
    levels = batching.priority_levels
    if levels < 0 or batching.delay_us < 0:
        raise ScenarioError("dynamic_batching: priority_levels and max_queue_delay_microseconds must be 0 or more")
    if levels and not 1 <= batching.default_priority <= levels:
        raise ScenarioError(
            f"dynamic_batching.default_priority_level must be from 1 to priority_levels, {levels}, "
            f"got {batching.default_priority}"
        )
    for level, _ in batching.level_policies:
        if levels and not 1 <= level <= levels:
            raise ScenarioError(f"dynamic_batching.priority_queue_policy {level}: there are levels 1 to {levels}")


def _check_ordering(batching: DynamicBatching) -> None:
    if not batching.preserve_ordering:
        return
    if batching.priority_levels > 1:
        raise ScenarioError("dynamic_batching.preserve_ordering allows one priority level at most")
    policies = [batching.policy, *(policy for _, policy in batching.level_policies)]
    if any(policy.timeout_action == "DELAY" and policy.timeout_us for policy in policies):
        raise ScenarioError("dynamic_batching.preserve_ordering excludes a timeout with timeout_action DELAY")


def _check_sequence(batching: SequenceBatching, most: int) -> None:
    if batching.strategy == "oldest":
        _check_preferred("sequence_batching.oldest", batching.preferred, most)
        if batching.max_candidates < 1:
            raise ScenarioError("sequence_batching.oldest.max_candidate_sequences must be at least 1")
    if not 0 <= batching.minimum_utilization <= 1:
        raise ScenarioError("sequence_batching.direct.minimum_slot_utilization must be from 0 to 1")
