"""Measure vLLM on this machine's GPU, unattended: models of real shape with random weights, the most valuable first.

    python -m lab.gpu.vllm --budget-s 1200 --out OUT

Each model has a server with vLLM's own defaults. For each mix of lengths, closed loops and Poisson arrivals take turns,
so that a drift shows in the levels that are measured twice. Results are saved after every run of levels. Several calls
work through one list: a mix that an earlier call began is continued.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from calibration.errors import CalibrationError, ServerError
from calibration.plan import PlanFile, parse_plan
from calibration.progress import Bar
from calibration.run import run
from calibration.store import Store
from lab.gpu.kept import Kept, log
from lab.gpu.served import GPU_NAMES
from lab.gpu.watch import Watch
from lab.life import HOST, last_error
from sizing.points import Point

NAME = "model"
READY_WITHIN_S = 330.0
RESERVE_S = 15.0
LEAST_S = 60.0
"""No server is started for less time: a start takes two minutes with its compilation."""
LEVELS = ((1, 21, 89), (5, 40))
"""Users of the closed loops, in two rounds; random arrivals follow each of them. At powers of two an engine is fastest
for its batch."""
WARM_USERS, WARM_S = (1, 16, 128), 3.0
SHARES = (0.5, 0.7, 0.85)
SLOTS = 256


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths, where the first `shared` tokens are the same in all prompts; the number of rounds of random arrivals,
    and how long each level is measured."""

    isl: int
    osl: int
    shared: int = 0
    arrivals: int = 1
    levels: tuple[tuple[int, ...], ...] = LEVELS
    closed_s: float = 10.0
    open_s: float = 35.0

    @property
    def entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"isl": self.isl, "osl": self.osl, "isl_cv": 0.3, "osl_cv": 0.5}
        return entry | ({"shared_prefix": self.shared} if self.shared else {})

    @property
    def label(self) -> str:
        return f"{self.isl}/{self.osl}" + (f" shared {self.shared}" if self.shared else "")


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the catalogue: the fields of its config.json, its precision, its mixes, and options of vLLM."""

    model: str
    precision: str
    config: Mapping[str, Any]
    mixes: tuple[Mix, ...]
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((self.model, self.precision, *self.options))


_COMMON = {"rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False}
_IDS = {"bos_token_id": 1, "eos_token_id": 1}
_QWEN3 = {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960, "rope_theta": 1_000_000.0}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    **_COMMON,
    **_IDS,
}
QWEN3_32B_FP8 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    **_QWEN3,
    **_COMMON,
    **_IDS,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    **_QWEN3,
    **_COMMON,
    **_IDS,
}
MANY = ((1, 21, 144), (5, 55, 256))
AGENDA = (
    Served(
        "meta-llama/Meta-Llama-3.1-8B",
        "bf16",
        LLAMA_8B,
        (Mix(2000, 100, shared=1600),),
        options=("--no-enable-prefix-caching",),
    ),
    Served("Qwen/Qwen3-32B", "fp8", QWEN3_32B_FP8, (Mix(3000, 60), Mix(1000, 200, levels=MANY))),
    Served("Qwen/Qwen3-30B-A3B", "bf16", QWEN3_30B_A3B, (Mix(1000, 200, levels=MANY), Mix(3000, 60))),
    Served(
        "meta-llama/Meta-Llama-3.1-8B",
        "bf16",
        LLAMA_8B,
        (Mix(1000, 200, arrivals=2, levels=MANY), Mix(4000, 100), Mix(2000, 100, shared=1600)),
    ),
)
SMALL_CONFIG = LLAMA_8B | {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
_SMALL_MIX = Mix(64, 16, levels=((1, 4), (2,)), closed_s=2, open_s=3)
_LITTLE_MEMORY = ("--gpu-memory-utilization", "0.3")
REHEARSAL = (
    Served("small", "fp32", SMALL_CONFIG, (_SMALL_MIX,), _LITTLE_MEMORY),
    Served("small", "fp32", SMALL_CONFIG, (_SMALL_MIX,), ("--no-enable-prefix-caching", *_LITTLE_MEMORY)),
)


def write_model(folder: Path, served: Served) -> None:
    """Write a config.json, and a tokenizer with a word for each entry of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(served.config))
    size = int(served.config["vocab_size"])
    words = {"<pad>": 0, "<end>": 1, "<unknown>": 2, **{f"w{number}": number for number in range(3, size)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<end>", "<unknown>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"pad_token": "<pad>", "eos_token": "<end>", "bos_token": "<end>", "unk_token": "<unknown>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **named})
    )


class Running:
    """A running vLLM; `url` answers once it is ready. Raises ServerError if it does not get ready in time."""

    def __init__(self, served: Served, kept: Kept, port: int, program: Sequence[str], within_s: float) -> None:
        folder = kept.work / "served" / served.label.replace("/", "-").replace(" ", "-")
        write_model(folder, served)
        self.url = f"http://{HOST}:{port}"
        self.log = kept.work / f"server-{served.label.replace('/', '-').replace(' ', '-')}.log"
        longest = min(8192, int(served.config["max_position_embeddings"]))
        command = [
            *program,
            *("--model", str(folder), "--load-format", "dummy", "--served-model-name", NAME),
            *("--host", HOST, "--port", str(port), "--max-model-len", str(longest)),
            *("--max-num-seqs", str(SLOTS), "--disable-uvicorn-access-log", "--generation-config", "vllm"),
            *served.options,
        ]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",  # FlashInfer is not carried along; requests here are greedy
            "VLLM_CACHE_ROOT": str(kept.work / "served" / "cache"),
        }
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            self._wait(within_s)
        except BaseException:
            self.stop()
            raise

    def _wait(self, within_s: float) -> None:
        ends_s = time.monotonic() + within_s
        while time.monotonic() < ends_s:
            if self._process.poll() is not None:
                raise ServerError(f"vLLM ended with status {self._process.returncode}: {last_error(self.log)}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.5)
        raise ServerError(f"vLLM was not ready within {within_s:.0f} s: {last_error(self.log)}")

    def stop(self) -> None:
        """Stop the server and its engine."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        time.sleep(2)  # the engine's process frees the card's memory


def plan_of(served: Served, mix: Mix, url: str, gpu: str, seed: int, processes: int, **loads: Any) -> PlanFile:
    """The plan of one run of levels."""
    plan = {
        "server": {"protocol": "openai", "url": url, "model": NAME, "metrics_url": f"{url}/metrics", "timeout_s": 90.0},
        "deployment": {
            "model": served.model,
            "precision": served.precision,
            "gpu": gpu,
            "tp": 1,
            "max_batch_size": SLOTS,
        },
        "lengths": [mix.entry],
        "check_load": 0,
        "warm_up": 1,
        "seed": seed,
        "client": {"self_check": False, "processes": processes},
        "until": {"half_width": 0.001},
        **loads,
    }
    return parse_plan("".join(f"{key}: {json.dumps(value)}\n" for key, value in plan.items()))


@dataclass
class Measuring:
    """Runs of levels at one running server, kept in the store under their labels."""

    kept: Kept
    store: Store
    watch: Watch
    gpu: str
    processes: int
    ends_s: float

    def server(self, served: Served, program: Sequence[str], port: int) -> None:
        """Start a server and measure its mixes while time is left. Raises ServerError if it does not start."""
        started_s = time.monotonic()
        running = Running(served, self.kept, port, program, min(READY_WITHIN_S, self.ends_s - started_s))
        try:
            log.info("%s serves after %.0f s", served.label, time.monotonic() - started_s)
            self.warm_up(served, running.url)
            for mix in served.mixes:
                try:
                    self.mix(served, mix, running.url)
                except (CalibrationError, KeyError) as error:
                    log.info("%s %s: %s", served.label, mix.label, error)
        finally:
            running.stop()
            self.kept.save()

    def warm_up(self, served: Served, url: str) -> None:
        """Send requests that are not kept: what is compiled on first use, such as an MoE model's kernels, then is."""
        plan = plan_of(
            served, served.mixes[0], url, self.gpu, 99, self.processes, concurrency=[*WARM_USERS], budget_s=WARM_S
        )
        with TemporaryDirectory() as folder, Bar(Console(stderr=True, quiet=True)) as bar:
            run(plan, Store(f"sqlite:///{folder}/warm.db"), bar)

    def mix(self, served: Served, mix: Mix, url: str) -> None:
        """Measure what `mix` still lacks while time is left."""
        first, *others = mix.levels
        self.closed(served, mix, url, "closed first", first)
        most_per_s = max(point.requests_per_s for point in self.points(served, mix, "closed first"))
        rates = [float(f"{share * most_per_s:.3g}") for share in SHARES]
        for number in range(mix.arrivals):
            self.run(served, mix, url, f"arrivals {number + 1}", rates=rates, budget_s=mix.open_s)
            if number < len(others):
                self.closed(served, mix, url, "closed more", others[number])
        self.closed(served, mix, url, "closed again", first[1:])

    def closed(self, served: Served, mix: Mix, url: str, name: str, users: Sequence[int]) -> None:
        self.run(served, mix, url, name, concurrency=[*users], budget_s=mix.closed_s)

    def run(self, served: Served, mix: Mix, url: str, name: str, **loads: Any) -> None:
        """One run of levels, if it is still missing and time is left. Each has its own arrivals and lengths."""
        label = f"{served.label} {mix.label}, {name}"
        done = self.kept.fact("runs") or {}
        if label in done or time.monotonic() > self.ends_s:
            return
        seed = zlib.crc32(label.encode()) % 10**6
        plan = plan_of(served, mix, url, self.gpu, seed, self.processes, **loads)
        started_s, at_s = time.monotonic(), time.time()
        with Bar(Console(stderr=True, quiet=True)) as bar:
            run_id = run(plan, self.store, bar)
        self.kept.learn("runs", done | {label: run_id})
        for point in self.store.points(run_id):
            log.info("  %s", told(point))
        card = self.watch.means(at_s, time.time())
        self.kept.learn(f"card {label}", card)
        log.info("%s: %.0f s, %s", label, time.monotonic() - started_s, {k: f"{v:.4g}" for k, v in card.items()})
        self.kept.save()

    def points(self, served: Served, mix: Mix, name: str) -> list[Point]:
        return self.store.points((self.kept.fact("runs") or {})[f"{served.label} {mix.label}, {name}"])


def told(point: Point) -> str:
    """A point as a line of text."""
    names = ("ttft_mean_s", "ttft_p95_s", "itl_mean_s", "e2e_mean_s")
    values = [(name, getattr(point, name)) for name in names]
    times = ", ".join(f"{name.removesuffix('_s')} {1000 * value:.1f} ms" for name, value in values if value)
    load = f"{point.load_kind} {point.load_value:g}: {point.requests_per_s:.2f} requests/s"
    return f"{load}, {times}, {point.requests} requests, {point.verdict or 'not judged'}"


@click.command()
@click.option("--budget-s", type=float, default=540.0, show_default=True, help="Seconds that this call may take.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the archive of results.")
@click.option("--work", type=click.Path(path_type=Path), help="Working folder; unset: OUT/work.")
@click.option("--resume", type=click.Path(path_type=Path), help="The archive of an earlier call.")
@click.option("--python", "program", default=sys.executable, show_default="this one", help="With vLLM.")
@click.option("--processes", type=int, default=6, show_default=True, help="Processes of the load generator.")
@click.option("--only", multiple=True, help="Of the models, by name.")
@click.option("--rehearsal", is_flag=True, help="A tiny model and short levels, on vLLM for CPUs.")
def measure(
    budget_s: float,
    out: Path,
    work: Path | None,
    resume: Path | None,
    program: str,
    processes: int,
    only: Sequence[str],
    rehearsal: bool,
) -> None:
    """Measure until the agenda is done or the time is over."""
    ends_s = time.monotonic() + budget_s - RESERVE_S
    agenda = REHEARSAL if rehearsal else AGENDA
    known = dict.fromkeys(served.model for served in agenda)
    if unknown := set(only) - set(known):
        raise click.UsageError(f"--only {', '.join(sorted(unknown))}: the models are {', '.join(known)}")
    kept = Kept(work or out / "work", out, resume)
    kept.start_log()
    kept.learn("is_small", rehearsal)
    gpu = "cpu" if rehearsal else gpu_of(kept, program)
    with Watch(kept.work / "gpu.csv") as watch:
        measuring = Measuring(kept, Store(f"sqlite:///{kept.database}"), watch, gpu, processes, ends_s)
        for number, served in enumerate(served for served in agenda if not only or served.model in only):
            left_s = ends_s - time.monotonic()
            if left_s < LEAST_S:
                break
            try:
                measuring.server(served, [program, "-P", "-m", "vllm.entrypoints.openai.api_server"], 8100 + number)
            except ServerError as error:
                log.info("%s: %s", served.label, error)
                if not number:
                    break  # most likely no other one starts either, and the machine's time is short
    log.info("over, %.0f s left", ends_s - time.monotonic())


def gpu_of(kept: Kept, python: str) -> str:
    """The catalogue's name of this machine's GPU; measures its ceilings once, before a server occupies it."""
    if kept.fact("ceilings") is None:
        code = "import json; from lab.gpu import ceilings; print(json.dumps(ceilings.measure('cuda')))"
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
        kept.learn("ceilings", json.loads(said.splitlines()[-1]))
        log.info("ceilings: %s", kept.fact("ceilings"))
    return GPU_NAMES.get(kept.fact("ceilings")["environment"]["device"], "gpu")


if __name__ == "__main__":
    measure()
