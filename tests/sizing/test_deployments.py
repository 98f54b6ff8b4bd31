"""A plan as the files that start its servers: the limits are those simulated, the fields those that were published, and
nothing that comes from outside escapes its quotes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import lab.vllm
from lab.environment import Environment
from lab.life import on_other_cores
from lab.vllm.server import VllmServer, variables, write_model
from lab.vllm.settings import Settings
from sizing import text
from sizing.analyses.pools import Pools, pools_of
from sizing.catalog import Layout
from sizing.cli import main
from sizing.cli.shapes import pools_json
from sizing.deploy.formats import FORMATS, archive, yaml_text
from sizing.deploy.settings import DeployError, deployment_of, engine_settings, kubernetes_name
from sizing.edge import BY_FORMULA
from sizing.engine import KV_POLICIES, POLICIES, Batching
from sizing.estimate import estimate
from sizing.files import parse_yaml
from sizing.plans import Plan
from sizing.workload import Lengths, Prefix
from tests.sizing.fleets_at_hand import candidate, fleet, question
from tests.sizing.published_schemas import CONFIG_MAP, INFERENCE_SERVICE, SCHEMAS
from validation.deployments import checked, published

FLEET = fleet(question())
LAYOUTS = (Layout(), Layout(2), Layout(4, 2), Layout(8, ep=8), Layout(dp=8, ep=8), Layout(2, dp=4, ep=8))


def document(
    batching: Batching | None = None, layout: Layout = LAYOUTS[0], engine: str = "vllm", spare: int = 1, **asked: Any
) -> dict[str, Any]:
    """The JSON of a plan with one fleet, whose engine is set as given."""
    one = candidate()
    replica = replace(one.replica, batching=batching or one.replica.batching)
    found = replace(FLEET, spare=spare, candidate=replace(one, layout=layout, engine=engine, replica=replica))
    printed: dict[str, Any] = json.loads(json.dumps(text.as_json(Plan(question(**asked), (found,), ()))))
    return printed


def started(script: str) -> list[str]:
    """The words that a shell hands to the command that a script runs."""
    told = script.replace("\nexec ", "\nprintf '%s\\0' ", 1).encode()
    return subprocess.run(["sh"], input=told, capture_output=True, check=True).stdout.decode().split("\0")[:-1]


def values(words: list[str]) -> dict[str, str]:
    """Option -> value, empty for a switch."""
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word: "" if after.startswith("--") else after for word, after in pairs if word.startswith("--")}


def yaml_of(files: dict[str, str], name: str) -> Any:
    return yaml.safe_load(files[name])


BATCHINGS = st.builds(
    Batching,
    policy=st.sampled_from(POLICIES),
    max_batch_size=st.integers(1, 64).map(lambda ranks: 8 * ranks),
    token_budget=st.integers(1, 64).map(lambda chunks: 256 * chunks),
    kv_tokens=st.integers(10_000, 10**8).map(lambda tokens: 8 * tokens),
    kv_policy=st.sampled_from(KV_POLICIES),
    max_tokens=st.sampled_from((0, 300)),
    max_waiting=st.integers(0, 1000),
    receive_interval_steps=st.sampled_from((1, 30)),
)


@given(batching=BATCHINGS, layout=st.sampled_from(LAYOUTS), hit_rate=st.sampled_from((0.0, 0.5)))
def test_the_limits_of_every_engine_are_those_that_were_simulated(
    batching: Batching, layout: Layout, hit_rate: float
) -> None:
    """All ranks together have what the replica has, whichever way an engine counts; the KV cache to the block."""
    asked = question()
    prefixed = replace(asked.workload, prefix=Prefix(100, hit_rate))
    plan = deployment_of(document(batching, layout, workload=prefixed))
    vllm = values(started(FORMATS["vllm"](plan)["vllm.sh"]))
    sglang = values(started(FORMATS["sglang"](plan)["sglang.sh"]))
    trtllm = yaml_of(FORMATS["trtllm"](plan), "trtllm-config.yaml")
    ranks = layout.dp

    assert int(vllm["--max-num-seqs"]) * ranks == int(sglang["--max-running-requests"]) == batching.max_batch_size
    assert trtllm["max_batch_size"] * ranks * layout.pp == batching.max_batch_size  # of each batch in its stages
    assert int(vllm["--max-num-batched-tokens"]) * ranks == batching.token_budget == trtllm["max_num_tokens"] * ranks
    assert sglang["--chunked-prefill-size"] == str(-1 if batching.policy == "whole_prompt" else batching.token_budget)
    blocks = int(vllm["--num-gpu-blocks-override"]) - 1
    size = int(vllm["--block-size"])
    assert 0 <= batching.kv_tokens / ranks - size * blocks < size
    assert int(sglang["--max-total-tokens"]) * ranks == batching.kv_tokens
    assert trtllm["kv_cache_config"]["max_tokens"] * ranks == batching.kv_tokens

    assert math.prod(int(vllm.get(f"--{ways}-parallel-size", 1)) for ways in ("tensor", "pipeline", "data")) == (
        layout.gpus
    )
    assert int(sglang["--tp-size"]) * int(sglang.get("--pp-size", 1)) == layout.gpus
    assert trtllm["tensor_parallel_size"] * trtllm["pipeline_parallel_size"] == layout.gpus
    assert ("--enable-expert-parallel" in vllm) == (layout.ep > 1) == ("--ep-size" in sglang)

    interval = sglang.get("--scheduler-recv-interval")
    assert interval == (None if batching.receive_interval_steps == 1 else "30")
    cached = hit_rate > 0
    assert ("--enable-prefix-caching" in vllm, "--disable-radix-cache" in sglang) == (cached, not cached)
    assert trtllm["kv_cache_config"]["enable_block_reuse"] == cached
    longest = 1000 + max(200, batching.max_tokens)
    assert int(vllm["--max-model-len"]) == trtllm["max_seq_len"] == longest
    context = int(sglang["--context-length"])  # what SGLang's scheduler takes: a prompt, and its answer whole
    assert context - 1 - 5 > 1000 and longest <= context - 2
    queue = vllm.get("--max-num-queued-reqs")
    assert queue == (str(batching.max_batch_size + batching.max_waiting) if batching.max_waiting else None)


@pytest.mark.parametrize(
    ("batching", "said"),
    [
        (
            Batching("static", 64),
            {
                "vllm": "simulated as static",
                "sglang": "simulated as static",
                "trtllm": "prompts that max_num_tokens holds",
            },
        ),
        (Batching("prefill_first"), {"vllm": "as prefill_first", "trtllm": "as prefill_first"}),
        (Batching("whole_prompt"), {"sglang": "as whole_prompt"}),
        (Batching(kv_tokens=10**6), {"vllm": "preempts where memory runs out", "sglang": "retracts where memory"}),
        (Batching(receive_interval_steps=30), dict.fromkeys(("vllm", "trtllm"), "new requests every 30 decode steps")),
        (Batching(batch_wait_steps=20), dict.fromkeys(("vllm", "sglang"), "wait for others up to 20 decode steps")),
        (Batching(max_waiting=7), {"trtllm": "at most 7 requests waiting"}),
        (Batching("whole_prompt", token_budget=1100), {"trtllm": "rejects prompts of more than max_num_tokens"}),
        (Batching(), {"vllm": "simulated without a limit", "sglang": "without a limit", "trtllm": "without a limit"}),
    ],
)
def test_what_an_engine_cannot_be_told_is_said(batching: Batching, said: dict[str, str]) -> None:
    plan = deployment_of(document(batching))
    for engine, words in said.items():
        script = FORMATS[engine](plan)[f"{engine}.sh"]
        assert words in "".join(line for line in script.splitlines(keepends=True) if line.startswith("#")), engine


def test_tensorrt_llm_is_told_how_long_prompts_wait_for_others() -> None:
    waits = deployment_of(document(Batching(batch_wait_steps=20, batch_wait_ratio=0.9)))
    told = yaml_of(FORMATS["trtllm"](waits), "trtllm-config.yaml")
    assert (told["batch_wait_timeout_iters"], told["batch_wait_max_tokens_ratio"]) == (20, 0.9)
    assert "wait for others" not in FORMATS["trtllm"](waits)["trtllm.sh"]
    ranks = deployment_of(document(Batching(batch_wait_steps=20), Layout(1, dp=8)))  # py_executor.py: _schedule
    assert "starts them at once" in FORMATS["trtllm"](ranks)["trtllm.sh"]
    at_once = yaml_of(FORMATS["trtllm"](deployment_of(document(Batching(batch_wait_ratio=0.9)))), "trtllm-config.yaml")
    assert not {"batch_wait_timeout_iters", "batch_wait_max_tokens_ratio"} & set(at_once)


@pytest.mark.parametrize("layout", [Layout(4), Layout(2, 2)])
def test_an_estimate_is_told_what_one_stage_was_estimated_with(layout: Layout) -> None:
    """Stages have 8,192 tokens an iteration each, however the simulator counts them together."""
    estimated = estimate("Qwen/Qwen3-32B", "l40s", layout, "fp8", Lengths(1000, 200), engine="vllm", token_budget=8192)
    asked = question()
    saved = text.as_json(Plan(asked, (replace(FLEET, candidate=estimated),), ()))
    told = values(started(FORMATS["vllm"](deployment_of(saved))["vllm.sh"]))
    assert (told["--max-num-seqs"], told["--max-num-batched-tokens"]) == ("256", "8192")
    assert (told["--quantization"], told["--kv-cache-dtype"]) == ("fp8", "fp8")
    assert told["--gpu-memory-utilization"] == "0.9"  # vLLM's own default at the version that was timed


def test_a_gpu_without_fp8_keeps_a_cache_of_16_bits_for_fp8_weights() -> None:
    unpacked = estimate("nvidia/Llama-3.1-70B-Instruct-FP8", "a100_sxm", 4, "fp8", Lengths(1000, 200), engine="vllm")
    saved = text.as_json(Plan(question(), (replace(FLEET, candidate=unpacked),), ()))
    told = values(started(FORMATS["vllm"](deployment_of(saved))["vllm.sh"]))
    assert told.get("--kv-cache-dtype", "auto") == "auto"
    assert "--quantization" not in told  # as its checkpoint says


def test_lengths_without_a_bound_leave_the_longest_request_to_the_engine() -> None:
    asked = question()
    lengths = replace(asked.workload.lengths, osl_cv=0.5)
    plan = deployment_of(document(workload=replace(asked.workload, lengths=lengths)))
    assert values(started(FORMATS["vllm"](plan)["vllm.sh"]))["--max-model-len"] == "auto"
    assert "--context-length" not in values(started(FORMATS["sglang"](plan)["sglang.sh"]))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", ""])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_every_file_keeps_to_the_published_schema(engine: str, layout: Layout) -> None:
    plan = deployment_of(document(layout=layout, engine=engine), namespace="chat")
    for name, schemas in SCHEMAS.items():
        files = FORMATS[name](plan)
        assert files.keys() == schemas.keys()
        for file, expected in schemas.items():
            if not file.endswith(".yaml"):
                assert subprocess.run(["sh", "-n"], input=files[file], text=True, check=False).returncode == 0
                continue
            if (name, engine) == ("kserve", "trtllm"):
                expected = [CONFIG_MAP, INFERENCE_SERVICE]
            documents = list(yaml.safe_load_all(files[file]))
            assert len(documents) == len(expected), file
            for content, schema in zip(documents, expected, strict=True):
                Draft202012Validator(schema).validate(content)
                if "metadata" in content:
                    assert content["metadata"]["namespace"] == "chat"


def test_the_replicas_are_those_of_the_plan_with_its_spares() -> None:
    saved = document(layout=Layout(2), spare=2)
    plan = deployment_of(saved)
    spec = yaml_of(FORMATS["helm"](plan), "values.yaml")["servingEngineSpec"]["modelSpec"][0]
    assert (spec["replicaCount"], spec["requestGPU"]) == (saved["replicas"], 2)
    predictor = yaml_of(FORMATS["kserve"](plan), "inferenceservice.yaml")["spec"]["predictor"]
    assert predictor["minReplicas"] == predictor["maxReplicas"] == saved["replicas"]
    assert predictor["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    graph = yaml_of(FORMATS["dynamo"](plan), "dynamographdeployment.yaml")
    assert [part["replicas"] for part in graph["spec"]["components"]] == [1, saved["replicas"]]


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_autoscalers_ask_for_the_plan_s_replicas_at_its_load(spare: int) -> None:
    """By Little's law; Kubernetes asks for the sum over the target, rounded up. At half the load KEDA keeps spares."""
    saved = document(spare=spare)
    working = saved["replicas"] - spare
    in_flight = question().workload.rate_per_s / working * saved["predicted"]["e2e"]["mean_s"]
    plan = deployment_of(saved)
    scaled = yaml_of(FORMATS["keda"](plan), "scaledobject.yaml")["spec"]
    trigger = scaled["triggers"][0]["metadata"]
    for load, expected in ((1.0, working), (0.5, math.ceil(0.5 * working))):
        query = re.sub(r"sum\([^)]*\)", f"{load * in_flight * working / 2:.12f}", trigger["query"])
        wanted = eval(query, {}) / float(trigger["threshold"])  # sums and products of numbers
        assert math.ceil(wanted - 0.02) == expected + spare
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        min(saved["replicas"], spare + 1),
        saved["replicas"],
    )
    metric = yaml_of(FORMATS["hpa"](plan), "hpa.yaml")["spec"]["metrics"][0]["pods"]
    assert math.ceil(in_flight * working / float(metric["target"]["averageValue"]) - 0.02) == saved["replicas"]


def test_prefill_and_decode_apart_are_workers_of_their_own() -> None:
    """Dynamo has both, with the engine as it runs; another format is of the one fleet, and says so."""
    found = estimate("Qwen/Qwen3-32B", "h200_sxm", 2, "bf16", Lengths(1000, 200), engine="vllm")
    asked = question()
    pools = pools_of(asked, [found], BY_FORMULA)
    assert isinstance(pools, Pools)
    saved = document() | {"disaggregated": json.loads(json.dumps(pools_json(pools, asked)))}
    plan = deployment_of(saved)
    graph = yaml_of(FORMATS["dynamo"](plan), "dynamographdeployment.yaml")
    Draft202012Validator(SCHEMAS["dynamo"]["dynamographdeployment.yaml"][0]).validate(graph)
    _, prefill, decode = graph["spec"]["components"]
    for worker, of in ((prefill, pools.prefill), (decode, pools.decode)):
        told = values(worker["podTemplate"]["spec"]["containers"][0]["args"])
        assert told["--disaggregation-mode"] == worker["type"]
        assert worker["replicas"] == of.replicas
        assert (
            int(told["--num-gpu-blocks-override"]) == found.replica.batching.kv_tokens // int(told["--block-size"]) + 1
        )
    assert "use dynamo" in FORMATS["vllm"](plan)["vllm.sh"]


def test_a_replica_of_several_servers_is_for_dynamo_and_the_command_lines() -> None:
    saved = document(layout=Layout(8, 2)) | {"gpu": "h200_sxm"}
    plan = deployment_of(saved)
    for name in ("helm", "kserve"):
        with pytest.raises(DeployError, match=f"{name}: a replica of 16 GPUs spans 2 servers"):
            FORMATS[name](plan)
    worker = yaml_of(FORMATS["dynamo"](plan), "dynamographdeployment.yaml")["spec"]["components"][1]
    assert worker["multinode"] == {"nodeCount": 2}
    assert worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    with zipfile.ZipFile(BytesIO(archive(plan))) as packed:
        assert {name.partition("/")[0] for name in packed.namelist()} == set(FORMATS)
        assert b"spans 2 servers" in packed.read("helm/why-not.txt")
    assert archive(plan) == archive(plan)


def test_a_name_that_would_be_an_option_is_in_no_command_and_leaves_the_archive_whole() -> None:
    """Points may call a model so: the page's download is a ZIP all the same, and says why a format is not in it."""
    plan = deployment_of(document() | {"model": "--trust-remote-code", "sentence": ""})
    with zipfile.ZipFile(BytesIO(archive(plan))) as packed:
        files = {name: packed.read(name).decode() for name in packed.namelist()}
    starting = {"vllm", "sglang", "trtllm", "helm", "kserve", "dynamo"}
    assert {name.partition("/")[0] for name in files if name.endswith("/why-not.txt")} == starting
    assert all("for an option" in files[f"{name}/why-not.txt"] for name in starting)
    assert {"keda/scaledobject.yaml", "hpa/hpa.yaml"} < files.keys()


def test_a_gpu_is_the_same_in_capitals() -> None:
    """As points may have it: its maker's resource, and how many stand in a server."""
    small, large = (
        deployment_of(document(layout=Layout(8, 2)) | {"gpu": name, "sentence": ""}) for name in ("mi300x", "MI300X")
    )
    assert small.fleet.servers == large.fleet.servers == 2
    one = deployment_of(document() | {"gpu": "MI300X"})
    service = yaml_of(FORMATS["kserve"](one), "inferenceservice.yaml")
    assert service["spec"]["predictor"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "1"}


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60).filter(
    lambda name: not name.startswith("-")
)


def in_container(word: str) -> str:
    """A word of a container's command as Kubernetes hands it on: $(NAME) is a variable, $$ a dollar sign."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else "a secret", word)


@given(model=NAMES, path=NAMES)
@example(model="$(HF_TOKEN)", path="$$(HF_TOKEN)$")
def test_no_name_escapes_its_quotes(model: str, path: str) -> None:
    """A shell and a YAML reader give back the very names, and nothing else changes with them."""
    plan, plain = (
        deployment_of(document(engine="trtllm") | {"model": name, "sentence": name}, at, name="x")
        for name, at in ((model, path), ("m", "p"))
    )
    for name in ("vllm", "sglang", "trtllm"):
        file = f"{name}.sh"
        words, expected = started(FORMATS[name](plan)[file]), started(FORMATS[name](plain)[file])
        served = model.replace(":", "-") if name == "sglang" else model
        assert words == [{"m": served, "p": path}.get(word, word) for word in expected]
    service = list(yaml.safe_load_all(FORMATS["kserve"](plan)["inferenceservice.yaml"]))[1]
    assert in_container(service["spec"]["predictor"]["containers"][0]["args"][0]) == path
    graph = yaml_of(FORMATS["dynamo"](plan), "dynamographdeployment.yaml")["spec"]["components"][1]
    arguments = graph["podTemplate"]["spec"]["containers"][0]["args"]
    assert [*map(in_container, arguments[:4])] == ["--model", path, "--served-model-name", model]
    (helm,) = yaml_of(FORMATS["helm"](plan), "values.yaml")["servingEngineSpec"]["modelSpec"]
    assert (in_container(helm["modelURL"]), in_container(helm["vllmConfig"]["extraArgs"][1])) == (path, model)
    by_name = deployment_of(document() | {"model": model, "sentence": model}, path, name="x")
    query = yaml_of(FORMATS["keda"](by_name), "scaledobject.yaml")["spec"]["triggers"][0]["metadata"]["query"]
    assert json.loads(query.partition("model_name=")[2].partition("}) + ")[0]) == model


def test_limits_of_the_question_reach_the_engines() -> None:
    """A queue limit is that of the load, not of the engine that was estimated; a timeout has no option anywhere."""
    load = question().workload
    limited = document(workload=replace(load, queue_limit=10, queue_timeout_s=30.0))
    assert limited["engine_settings"]["max_waiting"] == 10
    script = FORMATS["vllm"](deployment_of(limited))["vllm.sh"]
    slots = limited["engine_settings"]["max_batch_size"]
    assert values(started(script))["--max-num-queued-reqs"] == str(slots + 10)
    for engine in ("vllm", "sglang", "trtllm"):
        assert "leave the line after 30 s" in FORMATS[engine](deployment_of(limited))[f"{engine}.sh"]
    both = replace(FLEET.candidate, replica=FLEET.candidate.replica.with_queue(5))
    assert engine_settings(both, [load, replace(load, queue_limit=10)], 1.0).max_waiting == 5
    assert engine_settings(FLEET.candidate, [load, replace(load, queue_limit=10)], 1.0).max_waiting == 0


def test_kserve_makes_the_pods_of_the_plan() -> None:
    """Of KServe's classes only `none` makes minReplicas pods; a scaler beside it must be told to take over."""
    plan = deployment_of(document())
    service = yaml.safe_load(FORMATS["kserve"](plan)["inferenceservice.yaml"])
    assert service["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "none"
    assert service["spec"]["predictor"]["minReplicas"] == plan.fleet.replicas
    for scaler, file in (("keda", "scaledobject.yaml"), ("hpa", "hpa.yaml")):
        assert "autoscalerClass must be external" in FORMATS[scaler](plan)[file]


def test_gauges_that_nobody_scrapes_scale_nothing_down() -> None:
    for engine, gauge in (
        ("vllm", "vllm:num_requests_running{model_name="),
        ("trtllm", "trtllm_num_requests_running{pod"),
    ):
        (trigger,) = yaml_of(FORMATS["keda"](deployment_of(document(engine=engine))), "scaledobject.yaml")["spec"][
            "triggers"
        ]
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert f"sum({gauge}" in trigger["metadata"]["query"]


def test_tensorrt_llm_is_told_to_have_the_gauges_that_its_replicas_are_scaled_by() -> None:
    """openai_server.py mounts /prometheus/metrics by the one, and writes iterations' gauges there by the other."""
    config, _ = yaml.safe_load_all(FORMATS["kserve"](deployment_of(document(engine="trtllm")))["inferenceservice.yaml"])
    told = yaml.safe_load(config["data"]["trtllm-config.yaml"])
    assert told["return_perf_metrics"] and told["enable_iter_perf_stats"]


def test_how_requests_are_routed_is_said_where_it_is_not_at_random() -> None:
    asked = "fewest requests outstanding"
    for routing, said in (("random", False), ("least_outstanding", True)):
        plan = deployment_of(document(routing=routing))
        for name, files in FORMATS.items():
            if name not in ("keda", "hpa"):
                assert all((asked in text) == said for text in files(plan).values() if text.startswith("#")), name
    alone = deployment_of(document(routing="least_outstanding") | {"replicas": 1, "spare": 0})
    assert asked not in FORMATS["vllm"](alone)["vllm.sh"]
    sessions = deployment_of(document() | {"sessions": {"routing": "affinity"}})
    assert "has served the session before" in FORMATS["helm"](sessions)["values.yaml"]


@pytest.mark.parametrize(
    ("engine", "stages", "taken"),
    [
        ("vllm", (2, 2), False),
        ("vllm", (2, 1), True),
        ("sglang", (1, 2), False),
        ("sglang", (2, 2), True),
        ("trtllm", (1, 2), True),
    ],
)
def test_pools_are_refused_that_an_engine_cannot_join(engine: str, stages: tuple[int, int], taken: bool) -> None:
    one = document(engine=engine)
    pools = {role: one | {"pp": pp} for role, pp in zip(("prefill", "decode"), stages, strict=True)}
    plan = deployment_of(one | {"disaggregated": pools})
    with nullcontext() if taken else pytest.raises(DeployError, match=f"of {stages[0]} pipeline stages to {stages[1]}"):
        FORMATS["dynamo"](plan)


def test_names_that_an_engine_cannot_serve_under_are_said() -> None:
    named = document() | {"model": "qwen3:32b"}
    assert "served as qwen3-32b" in FORMATS["sglang"](deployment_of(named))["sglang.sh"]
    assert "served as" not in FORMATS["vllm"](deployment_of(named))["vllm.sh"]
    assert "serves a folder under" in FORMATS["trtllm"](deployment_of(named, "/models/one"))["trtllm.sh"]
    assert "serves a folder under" not in FORMATS["trtllm"](deployment_of(named))["trtllm.sh"]


@given(NAMES)
def test_names_of_kubernetes_objects_are_dns_labels(name: str) -> None:
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", found := kubernetes_name(name))
    assert len(found) <= 50
    assert kubernetes_name(found) == found


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(0.001, 1e6),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20),
    st.sampled_from(
        ["1e3", "0o17", "017", "yes", "on", "~", "12:30", "=", "<<", "2001-01-01", ".inf", "0x1f", "- a", "a\nb"]
    ),
)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", min_size=1), inner)))
def test_readers_of_both_yaml_versions_read_the_same(content: Any) -> None:
    """YAML 1.1 by PyYAML, YAML 1.2 by the reader of this program."""
    written = yaml_text({"key": content})
    assert yaml.safe_load(written) == {"key": content} == parse_yaml(written, "x")


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["deploy", *arguments])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document()))
    return path


def test_the_command_prints_or_writes(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--plan", str(saved), "--format"]
    code, out, err = run([*asked, "vllm", "--model-path", "/models/m"], capsys)
    assert (code, err) == (0, "")
    assert started(out)[:5] == ["vllm", "serve", "/models/m", "--served-model-name", "acme/m"]
    for name, target, files in (
        ("helm", "my.yaml", ["my.yaml"]),
        ("trtllm", "folder", ["folder/trtllm.sh", "folder/trtllm-config.yaml"]),
    ):
        code, out, _ = run([*asked, name, "--out", str(tmp_path / target), "--json"], capsys)
        assert code == 0
        assert json.loads(out) == {"format": name, "files": [str(tmp_path / file) for file in files]}
        assert all((tmp_path / file).stat().st_size for file in files)


OLD = {key: value for key, value in document().items() if key != "engine_settings"}
BAD = document()
BAD["engine_settings"] = BAD["engine_settings"] | {"max_batch_size": "; rm -rf /"}


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("{", [], "not JSON"),
        ("[]", [], "JSON object"),
        ('{"model": "m", "a": {"gpus": 1, "gpus": 2}}', [], "key 'gpus' is there twice"),
        ("{}", [], "no plan"),
        ('{"feasible": false, "why": "w"}', [], "no plan"),
        (json.dumps(OLD), [], "of this version"),
        (json.dumps(BAD), [], "engine_settings.max_batch_size"),
        (json.dumps(document()), ["--name", "A_b"], "--name"),
        (json.dumps(document()), ["--namespace", "-x"], "--namespace"),
        (json.dumps(document()), ["--model-path", "--trust-remote-code"], "for an option"),
        (json.dumps(document()), ["--format", "hpa"], "name a folder with --out"),
        (json.dumps(document()), ["--json"], "--out"),
        (json.dumps(document()), ["--format", "slurm"], "slurm"),
        (json.dumps(document()), ["--out", "/dev/null/x"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_line(
    content: str, arguments: list[str], said: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved.write_text(content)
    code, out, err = run(["--plan", str(saved), "--format", "vllm", *arguments], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and said in err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--help"], capsys)
    assert code == 0 and "python -m sizing deploy --plan plan.json" in out


PROGRAM = """
import json, runpy, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
for line in json.loads(sys.argv.pop(1)):
    found = vars(make_arg_parser(FlexibleArgumentParser()).parse_args(line))
    print("PARSED " + json.dumps(found, default=str), flush=True)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""Tells what vLLM's own parser makes of lines, then is its server: vLLM takes tens of seconds to load."""
EXPORTED = [
    deployment_of(document(batching, layout))
    for batching in (Batching("chunked", 64, 4096, 80_000, max_waiting=9), Batching("whole_prompt", 32, 2048))
    for layout in LAYOUTS
]


class ExportedServer(VllmServer):
    """A vLLM on the CPU, started by an exported command line; only its weights, data type and port are its own."""

    line: tuple[str, ...] = ()
    parsed: tuple[list[str], ...] = ()
    """Other lines, that its log tells as they were parsed."""

    def _start(self, ready: Environment, work: Path) -> subprocess.Popen[bytes]:
        write_model(self.tokenizer, self.settings)
        port = str(self.settings.http_port)
        own = ("--load-format", "dummy", "--enforce-eager", "--dtype", "float32", "--port", port)
        words = [str(self.tokenizer) if word == "WEIGHTS" else word for word in self.line]
        program = Path(lab.vllm.__file__).with_name("openai_server.py")  # takes --model for what follows `vllm serve`
        told = ("-P", "-c", PROGRAM, json.dumps(self.parsed), str(program))
        command = on_other_cores(0, str(ready.python), *told, "--model", *words[2:], *own)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=work,
                env={**os.environ, **variables(self.settings, work)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture(scope="module")
def exported() -> Iterator[ExportedServer]:
    small = Settings(http_port=0, hidden=256, layers=2, heads=4, kv_heads=2, max_sequence_tokens=2048, kv_tokens=4096)
    saved = document(Batching("chunked", 4, 512, kv_tokens=4096))
    server = ExportedServer(small)
    server.line = tuple(started(FORMATS["vllm"](deployment_of(saved, "WEIGHTS"))["vllm.sh"]))
    lines = [started(FORMATS["vllm"](plan)["vllm.sh"])[2:] for plan in EXPORTED]
    rarer = ("--quantization", "fp8_per_block", "--kv-cache-dtype", "fp8", "--kv-cache-memory-bytes", "9")
    lines.append([*lines[0], *rarer, "--max-model-len", "auto", "--gpu-memory-utilization", "0.9"])
    server.parsed = tuple(lines)
    with server:
        yield server


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_vllm_itself_takes_every_option(exported: ExportedServer) -> None:
    """Its own parser knows each of them, and reads back what was simulated."""
    told = exported.log.read_text(errors="replace").splitlines()
    found = [json.loads(line.removeprefix("PARSED ")) for line in told if line.startswith("PARSED ")]
    assert len(found) == len(exported.parsed)
    for plan, parsed in zip(EXPORTED, found[: len(EXPORTED)], strict=True):
        settings = plan.fleet.engine_settings
        assert (parsed["model_tag"], parsed["served_model_name"]) == (plan.path, [plan.model])
        assert parsed["max_num_seqs"] == settings.max_batch_size
        assert parsed["max_num_batched_tokens"] == settings.token_budget
        assert parsed["enable_prefix_caching"] is False
        assert parsed["enable_chunked_prefill"] is (settings.policy == "chunked")
        assert parsed["max_model_len"] == settings.max_model_tokens
        layout = plan.fleet.layout
        ways = [parsed[f"{name}_parallel_size"] for name in ("tensor", "pipeline", "data")]
        assert ways == [layout.tp, layout.pp, layout.dp]


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_server_starts_with_the_exported_line_and_has_its_limits(exported: ExportedServer) -> None:
    """It serves under the plan's name, its KV cache is the simulated one, its gauges are those that KEDA asks for."""
    with urllib.request.urlopen(f"{exported.url}/v1/models", timeout=60) as response:
        (served,) = json.loads(response.read())["data"]
    with urllib.request.urlopen(exported.metrics_url, timeout=60) as page:
        metrics = page.read().decode()
    assert (served["id"], served["max_model_len"]) == ("acme/m", 1200)
    assert 'block_size="64"' in metrics and f'num_gpu_blocks="{4096 // 64 + 1}"' in metrics
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        assert f'{gauge}{{engine="0",model_name="acme/m"}} 0.0' in metrics


# --- The check against published files (validation/deployments.py)


def definition(kind: str, spec: dict[str, Any]) -> str:
    """A custom resource definition of one version, as a project publishes it."""
    schema = {"type": "object", "properties": {"apiVersion": {}, "kind": {}, "metadata": {}, "spec": spec}}
    version = {"name": "v1alpha1", "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "keda.sh", "names": {"kind": kind}, "versions": [version]}
    return yaml.safe_dump({"kind": "CustomResourceDefinition", "spec": spec})


def fields(**named: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": named}


COUNTS = {name: {"type": "integer", "format": "int32"} for name in ("minReplicaCount", "maxReplicaCount")}
TRIGGERS = {"type": "array", "items": fields(type={"type": "string"}, metadata={}, metricType={"type": "string"})}
SCALE_TARGET = fields(apiVersion={"type": "string"}, kind={"type": "string"}, name={"type": "string"})
TARGET_PRESERVED = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
WITHOUT_NAME = fields(apiVersion={"type": "string"}, kind={"type": "string"})


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        (fields(**COUNTS, triggers=TRIGGERS, scaleTargetRef=SCALE_TARGET), []),
        (fields(**COUNTS, triggers=TRIGGERS, scaleTargetRef=TARGET_PRESERVED), []),
        (fields(**COUNTS, triggers=TRIGGERS, scaleTargetRef=WITHOUT_NAME), ["scaleTargetRef: .*'name' was unexpected"]),
        (fields(**COUNTS, triggers={"type": "object"}, scaleTargetRef=SCALE_TARGET), ["triggers: .* is not of type"]),
        (fields(**COUNTS, scaleTargetRef=SCALE_TARGET), ["spec: .*'triggers' was unexpected"]),
        (TARGET_PRESERVED, ["leaves spec open"]),
    ],
)
def test_a_field_that_no_definition_names_is_a_fault(tmp_path: Path, spec: dict[str, Any], faults: list[str]) -> None:
    (tmp_path / "crd.yaml").write_text(definition("ScaledObject", spec))
    rows = [row for row in checked(deployment_of(document()), published(tmp_path)) if row[0].startswith("keda")]
    ((_, _, found),) = rows
    assert len(found) == len(faults)
    assert all(re.search(pattern, fault) for pattern, fault in zip(faults, found, strict=True))


def test_an_option_that_no_source_defines_is_a_fault(tmp_path: Path) -> None:
    """Every option that is left out of a copy of what the line uses is named, and no other."""
    plan = deployment_of(document(Batching(max_waiting=9, kv_tokens=10**6)))
    used = sorted(values(started(FORMATS["sglang"](plan)["sglang.sh"])))
    (tmp_path / "sglang").mkdir()
    for missing in used:
        as_fields = [f"    {name[2:].replace('-', '_')}: A[int, 'help'] = 0\n" for name in used if name != missing]
        (tmp_path / "sglang" / "args.py").write_text(f"class ServerArgs:\n{''.join(as_fields)}")
        rows = {what: faults for what, _, faults in checked(plan, published(tmp_path))}
        assert rows["sglang: sglang.sh"] == [f"{missing}: no such option"]


@pytest.mark.parametrize(
    ("replaced", "by", "faults"),
    [
        ("", "", []),
        ("    max_tokens: int\n", "", ["KvCacheConfig.max_tokens: no such field"]),
        ('    SAFE = "GUARANTEED_NO_EVICT"\n', "", ["'GUARANTEED_NO_EVICT' is none of MAX_UTILIZATION"]),
        ("class Base:\n    max_batch_size: int\n", "class Base:\n", ["TorchLlmArgs.max_batch_size: no such field"]),
    ],
)
def test_a_key_or_word_that_no_class_has_is_a_fault(tmp_path: Path, replaced: str, by: str, faults: list[str]) -> None:
    source = """
class Policy(StrEnum):
    SAFE = "GUARANTEED_NO_EVICT"
    FULL = "MAX_UTILIZATION"
class SchedulerConfig(Strict):
    capacity_scheduler_policy: Policy = Field(default=Policy.SAFE)
class KvCacheConfig(Strict):
    enable_block_reuse: bool = True
    max_tokens: int
class Base:
    max_batch_size: int
    max_num_tokens: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    enable_attention_dp: bool
    max_seq_len: Optional[int]
    enable_chunked_prefill: bool
    return_perf_metrics: bool
    enable_iter_perf_stats: bool
class TorchLlmArgs(Base):
    kv_cache_config: KvCacheConfig
    scheduler_config: Optional[SchedulerConfig]
"""
    (tmp_path / "trtllm").mkdir()
    (tmp_path / "trtllm" / "llm_args.py").write_text(source.replace(replaced, by))
    plan = deployment_of(document(Batching(kv_policy="guaranteed_no_evict", kv_tokens=10**6), engine="trtllm"))
    rows = {what: found for what, _, found in checked(plan, published(tmp_path))}
    found = rows["trtllm: trtllm-config.yaml"]
    assert len(found) == len(faults) and all(fault in text for fault, text in zip(faults, found, strict=True))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_worker_of_dynamo_is_told_no_limit_that_it_ignores(engine: str) -> None:
    """vLLM counts requests in line in its API server, which Dynamo does without; SGLang in its scheduler."""
    plan = deployment_of(document(Batching(max_waiting=9), engine=engine))
    text = FORMATS["dynamo"](plan)["dynamographdeployment.yaml"]
    assert ("queue" in text, "at most 9 requests waiting" in text) == (engine == "sglang", engine == "vllm")
