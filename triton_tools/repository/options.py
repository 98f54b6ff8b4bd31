"""The options of a TensorRT-LLM model repository: contract, batching, limits, tokenizer, instances, queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from calibration.errors import RepositoryError
from sizing.errors import quoted
from triton_tools.repository import legal
from triton_tools.repository.contracts import CONTRACTS, Contract

Batching = Literal["in_flight", "static"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
MODEL_TYPES: dict[str, str] = {"in_flight": "inflight_fused_batching", "static": "V1"}
TimeoutAction = Literal["REJECT", "DELAY"]
LARGEST = 2**31 - 1
"""The largest number in a model configuration."""
TIMEOUT_ACTIONS: tuple[TimeoutAction, ...] = get_args(TimeoutAction)


@dataclass(frozen=True, slots=True)
class Queueing:
    """Triton's own queue in front of `tensorrt_llm`; the default hands every request over at once.

    Attributes:
        preferred_batch_sizes: if empty, those of the contract: max_batch_size in v0.8, no batcher in v0.5.
        max_delay_us: how long a request may wait for a preferred batch.
        max_queue_size: most waiting requests, 0 no limit; the next one is refused.
        timeout_us: how long a request may wait before `timeout_action` applies, 0 no limit.
        allow_timeout_override: a request may ask for a shorter timeout than `timeout_us`.
        priority_levels: their number, 0 none; 1 is the highest, `default_priority_level` that of requests without one.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_delay_us: int = 0
    max_queue_size: int = 0
    timeout_us: int = 0
    timeout_action: TimeoutAction = "REJECT"
    allow_timeout_override: bool = False
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0

    def __post_init__(self) -> None:
        """Raises RepositoryError with one line that names the first number out of range."""
        for name in ("max_delay_us", "max_queue_size", "timeout_us", "priority_levels", "default_priority_level"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise RepositoryError(f"{name} must be from 0 to {LARGEST}, got {quoted(getattr(self, name))}")
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= LARGEST:
                raise RepositoryError(f"preferred_batch_sizes must be from 1 to {LARGEST}, got {quoted(size)}")
        levels = self.priority_levels
        if levels and not 1 <= self.default_priority_level <= levels:
            given = self.default_priority_level
            raise RepositoryError(f"default_priority_level must be from 1 to priority_levels ({levels}), got {given}")
        if self.default_priority_level and not levels:
            raise RepositoryError("default_priority_level means nothing without priority_levels")
        if self.timeout_action == "DELAY" and not self.timeout_us:
            raise RepositoryError("timeout_action means nothing without timeout_us")
        if self.preserve_ordering and levels > 1:
            raise RepositoryError(f"preserve_ordering allows one of priority_levels, got {levels}")
        if self.preserve_ordering and self.timeout_us and self.timeout_action == "DELAY":
            raise RepositoryError("preserve_ordering excludes the timeout_action DELAY")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one repository. None: not given, so that the backend's default applies.

    Folders are on the serving machine, so they need not exist here.

    Attributes:
        contract: v0.8 or v0.5, which has neither BLS model nor KV cache reuse.
        decoupled: needed for streaming; the model then refuses unary calls.
        policy: guaranteed_no_evict (also called guaranteed_completion) or max_utilization.
        max_tokens_in_paged_kv_cache, kv_cache_free_gpu_mem_fraction: the smaller of the two applies.
        backend: tensorrtllm, or python if the engine is a program of the Python backend.
        text_model: name of an additional text model on the Python backend; empty: none.
    """

    engine_dir: str = ""
    tokenizer_dir: str = ""
    tokenizer_type: str = "auto"
    contract: str = "v0.8"
    batching: Batching = "in_flight"
    policy: str = "guaranteed_no_evict"
    decoupled: bool = False
    max_batch_size: int = 128
    max_beam_width: int = 1
    max_num_sequences: int | None = None
    max_tokens_in_paged_kv_cache: int | None = None
    kv_cache_free_gpu_mem_fraction: float | None = None
    max_attention_window_size: int | None = None
    enable_kv_cache_reuse: bool | None = None
    enable_trt_overlap: bool | None = None
    enable_chunked_context: bool | None = None
    exclude_input_in_output: bool | None = None
    normalize_log_probs: bool | None = None
    gpu_device_ids: tuple[int, ...] = ()
    accumulate_tokens: bool = False
    preprocessing_instances: int = 1
    postprocessing_instances: int = 1
    bls_instances: int = 1
    queueing: Queueing = field(default_factory=Queueing)
    text_model: str = ""
    text_model_dir: str = ""

    @property
    def published(self) -> Contract:
        return CONTRACTS[self.contract]

    def __post_init__(self) -> None:
        """Raises RepositoryError with one line that names the first wrong option."""
        self._check_choices()
        self._check_numbers()
        self._check_profile()
        self._check_text_model()

    def _check_choices(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "contract": tuple(CONTRACTS),
            "batching": BATCHINGS,
            "policy": (*legal.POLICIES, *legal.POLICY_ALIASES),
            "tokenizer_type": legal.TOKENIZER_TYPES,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise RepositoryError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("engine_dir", "tokenizer_dir"):
            if not getattr(self, name).strip():
                raise RepositoryError(f"{name} is empty: name the folder as the serving machine sees it")

    def _check_numbers(self) -> None:
        counts = ("max_batch_size", "max_beam_width", "max_num_sequences", "max_tokens_in_paged_kv_cache")
        names = (*counts, "max_attention_window_size", "preprocessing_instances", "postprocessing_instances")
        for name in (*names, "bls_instances"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST:
                raise RepositoryError(f"{name} must be from 1 to {LARGEST}, got {quoted(value)}")
        largest = max(self.queueing.preferred_batch_sizes, default=0)
        if largest > self.max_batch_size:
            raise RepositoryError(f"preferred_batch_sizes must be at most max_batch_size, got {quoted(largest)}")
        if any(number < 0 for number in self.gpu_device_ids):
            raise RepositoryError(f"gpu_device_ids must be 0 or more, got {quoted(min(self.gpu_device_ids))}")
        fraction = self.kv_cache_free_gpu_mem_fraction
        if fraction is not None and not 0.0 < fraction <= 1.0:
            raise RepositoryError(f"kv_cache_free_gpu_mem_fraction must be above 0 and at most 1, got {fraction}")
        if self.decoupled and self.postprocessing_instances > 1:
            raise RepositoryError(
                f"postprocessing_instances must be 1 when decoupled, got {self.postprocessing_instances}: with more, "
                "tokens of one stream overtake each other"
            )

    def _check_profile(self) -> None:
        known = self.published.parameters["tensorrt_llm"]
        for name in ("max_num_sequences", "max_attention_window_size", "enable_kv_cache_reuse"):
            self._refuse_unknown(name, known)
        for name in ("enable_chunked_context", "exclude_input_in_output", "normalize_log_probs", "gpu_device_ids"):
            self._refuse_unknown(name, known)
        if self.published.model("tensorrt_llm_bls") is None and (self.accumulate_tokens or self.bls_instances > 1):
            raise RepositoryError(
                f"accumulate_tokens and bls_instances are for the BLS model: {self.contract} has none"
            )
        if self.contract == "v0.5" and self.max_beam_width != 1:
            raise RepositoryError(f"max_beam_width is fixed at 1 in v0.5, got {self.max_beam_width}")

    def _refuse_unknown(self, name: str, known: object) -> None:
        assert isinstance(known, dict)
        if name not in known and getattr(self, name) not in (None, ()):
            raise RepositoryError(f"{name} is not a parameter of the {self.contract} backend: leave it out")

    def _check_text_model(self) -> None:
        taken = [model.name for model in self.published.models]
        if self.text_model in taken or "/" in self.text_model or self.text_model.startswith("."):
            raise RepositoryError(f"text_model {self.text_model!r} cannot be a model's name here: choose another")
        if self.text_model_dir and not self.text_model:
            raise RepositoryError("text_model_dir means nothing without text_model, the name of the model")
        if self.text_model and not self.text_model_dir.strip():
            raise RepositoryError(f"text_model {self.text_model!r} needs text_model_dir, the folder of its weights")


def warnings(options: Options) -> list[str]:
    """What the backend will do differently from `options`, one line each."""
    found = []
    if options.policy in legal.POLICY_ALIASES:
        meant = legal.POLICY_ALIASES[options.policy]
        found.append(f"batch_scheduler_policy {options.policy} is not a value of the backend: written as {meant}")
    if options.decoupled and options.policy == "max_utilization" and not options.enable_chunked_context:
        found.append(forced_policy(options.contract))
    return found


def forced_policy(contract: str) -> str:
    """What becomes of max_utilization in a decoupled model."""
    unless = "" if contract == "v0.5" else " unless enable_chunked_context is True"
    return f"a decoupled model runs max_utilization as guaranteed_no_evict{unless}"
