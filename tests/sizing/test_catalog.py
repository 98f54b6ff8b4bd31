"""The shipped catalogue is valid and true to its source; names are found or suggested; faulty files are named."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sizing import catalog
from sizing.catalog import BITS, PRECISIONS, Gpu, Model, gpus, models, precisions, timed_gpus
from sizing.errors import CatalogueError

GPU_KEYS = """\
  name: A chip
  memory_bytes: 1000
  bandwidth_bytes_per_s: 10.0
  flops_per_s: {bf16: 5.0}
  precisions: [bf16]
  gpus_per_server: 8
  source: data sheet
"""


@pytest.mark.parametrize("name", sorted(gpus()))
def test_gpu_is_plausible(name: str) -> None:
    """Flop per byte between 100 and 1,000, faster formats not slower, memory from 24 to 310 GB."""
    gpu = gpus()[name]
    assert 24e9 < gpu.memory_bytes < 310e9
    assert 100 < gpu.flops_per_s["bf16"] / gpu.bandwidth_bytes_per_s < 1000
    rising = [gpu.flops_per_s[form] for form in ("bf16", "fp8", "fp4") if form in gpu.flops_per_s]
    assert rising == sorted(rising)
    assert gpu.precisions[0] == "bf16"
    assert ("nvfp4" in gpu.precisions) == ("fp4" in gpu.flops_per_s)


BY_DATA_SHEET = {"rtx_pro_6000_server": 1597e9}
"""Where that file has another card's figure."""


@pytest.mark.parametrize("name", timed_gpus())
def test_gpu_figures_are_those_of_the_named_source(name: str) -> None:
    pytest.importorskip("aiconfigurator_core")
    gpu = gpus()[name]
    assert gpu.source.endswith(f"systems/{name}.yaml")
    text = (importlib.resources.files("aiconfigurator_core") / "systems" / f"{name}.yaml").read_text()
    source = yaml.safe_load(text)
    chip = source["gpu"]
    assert gpu.memory_bytes == chip["mem_capacity"]
    assert gpu.bandwidth_bytes_per_s == BY_DATA_SHEET.get(name, chip["mem_bw"])
    assert gpu.gpus_per_server == source["node"]["num_gpus_per_node"]
    for form, key in (("bf16", "bfloat16_tc_flops"), ("fp8", "fp8_tc_flops"), ("fp4", "fp4_tc_flops")):
        assert gpu.flops_per_s.get(form, 0) == pytest.approx(chip.get(key, 0), rel=1e-3)


def test_weights_in_int4_have_scales() -> None:
    """TheBloke/Llama-2-7B-AWQ: a file of 3.89 GB, in which the tables of 32,000 words stay in 16 bits."""
    tables = 2 * 32000 * 4096
    packed = models()["meta-llama/Llama-2-7b-hf"].parameters - tables
    assert packed * BITS["int4"] / 8 + tables * 2 == pytest.approx(3.89e9, rel=0.01)


@pytest.mark.parametrize(("name", "both_ways"), [("tpu_v6e", 800e9), ("mi300x", 7 * 128e9), ("mi355x", 7 * 153.6e9)])
def test_links_are_of_one_direction(name: str, both_ways: float) -> None:
    assert gpus()[name].link_bytes_per_s == both_ways / 2  # of the vendors' pages


@pytest.mark.parametrize("name", ["stepfun-ai/Step-3.7-Flash", "stepfun-ai/Step-3.7-Flash-FP8"])
def test_step_takes_the_256k_tokens_of_its_card(name: str) -> None:
    assert models()[name].max_context_tokens == 256 * 1024


@pytest.mark.parametrize("name", sorted(models()))
def test_model_is_plausible(name: str) -> None:
    """A dense model is all active; a KV cache splits over no more GPUs than there are heads; engines and GPUs exist."""
    model = models()[name]
    assert 0 < model.active_parameters <= model.parameters
    assert (model.kind == "dense") == (model.active_parameters == model.parameters)
    assert model.heads % model.kv_heads == 0
    assert set(model.timings) <= {"trtllm", "vllm", "sglang"}
    assert {gpu for served in model.timings.values() for gpu in served} <= set(timed_gpus())
    assert any(precisions(gpu, model) for gpu in gpus().values())


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", 8.03, 8.03),
        ("meta-llama/Meta-Llama-3.1-70B", 70.6, 70.6),
        ("Qwen/Qwen3-32B", 32.8, 32.8),
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen/Qwen3-235B-A22B", 235, 22),
        ("openai/gpt-oss-120b", 117, 5.1),
        ("deepseek-ai/DeepSeek-R1", 671, 37),
    ],
)
def test_sizes_are_those_of_the_model_cards(name: str, billions: float, active: float) -> None:
    model = models()[name]
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.02)
    assert model.active_parameters == pytest.approx(active * 1e9, rel=0.08)


def test_llama_8b_leaves_65536_values_a_token() -> None:
    """2 (key, value) x 32 layers x 8 heads x 128."""
    assert models()["meta-llama/Meta-Llama-3.1-8B"].kv_values_per_token == 2 * 32 * 8 * 128


def test_catalogue_is_wide_enough() -> None:
    assert len(timed_gpus()) == 10
    assert len(gpus()) == 19
    assert len([model for model in models().values() if model.timings]) >= 40


@given(st.sampled_from(sorted(models())), st.randoms(use_true_random=False))
def test_letter_case_does_not_matter(name, random) -> None:
    shouted = "".join(random.choice((str.upper, str.lower))(letter) for letter in name)
    assert catalog.model(shouted).id == name


def test_last_part_of_an_id_is_enough() -> None:
    assert catalog.model("Qwen3-32B").id == "Qwen/Qwen3-32B"


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct"])
def test_a_sibling_has_the_shape_of_its_base(name: str) -> None:
    assert catalog.model(name).id == "meta-llama/Meta-Llama-3.1-8B"


def test_no_two_models_are_siblings() -> None:
    assert all(catalog.model(catalog.SIBLING.sub("", name.rpartition("/")[2])).id == name for name in models())


@pytest.mark.parametrize(
    ("find", "name", "suggestion"),
    [
        (catalog.gpu, "h200", "did you mean h200_sxm?"),
        (catalog.gpu, "h10_sxm", "h100_sxm"),
        (catalog.gpu, "h300", "did you mean h100_sxm, h200_sxm or "),
        (catalog.gpu, "a1000", "did you mean a100_sxm, a100_pcie or a10?"),
        (catalog.gpu, "gb30", "did you mean gb300?"),
        (catalog.model, "Llama-3.1-8", "did you mean meta-llama/Meta-Llama-3.1-8B?"),
        (catalog.model, "Qwen/Qwen3-23B", "Qwen/Qwen3-32B"),
        (catalog.model, "qqqq", "known: "),
    ],
)
def test_unknown_names_get_the_nearest(find, name: str, suggestion: str) -> None:
    with pytest.raises(CatalogueError, match="unknown") as caught:
        find(name)
    assert suggestion in str(caught.value)
    assert "\n" not in str(caught.value)


def test_published_checkpoints_run_as_published() -> None:
    everywhere = {precisions(gpu, models()["deepseek-ai/DeepSeek-R1"]) for gpu in gpus().values()}
    assert everywhere <= {("fp8_block",), ()}
    assert precisions(gpus()["a100_sxm"], models()["Qwen/Qwen3-32B"]) == ("bf16",)
    assert precisions(gpus()["a100_sxm"], models()["deepseek-ai/DeepSeek-R1"]) == ("fp8_block",)  # unpacked
    assert precisions(gpus()["gaudi3"], models()["deepseek-ai/DeepSeek-R1"]) == ()


def test_what_a_chip_multiplies_it_need_not_unpack() -> None:
    for gpu in gpus().values():
        assert not {*gpu.precisions} & {*gpu.unpacks}, gpu.id
        assert "bf16" in gpu.precisions


def test_every_precision_has_a_width() -> None:
    assert set(BITS) == set(PRECISIONS)
    assert all(3 < bits <= 16 for bits in BITS.values())


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("chip:\n" + GPU_KEYS.replace("1000", "-3"), ("chip", "'memory_bytes'", "-3")),
        ("chip:\n" + GPU_KEYS + "  colour: red\n", ("chip", "'colour'")),
        ("chip:\n" + GPU_KEYS.replace("  source: data sheet\n", ""), ("chip", "'source'")),
        ("chip:\n" + GPU_KEYS.replace("[bf16]", "[bf15]"), ("chip", "'precisions.0'", "bf15")),
        ("chip:\n" + GPU_KEYS.replace("5.0", ".inf"), ("chip", "flops_per_s")),
        ("chip: 3\n", ("chip", "mapping")),
        ("", ("mapping",)),
        ("a: [1\nb: 2\n", ("line 2", "YAML")),
    ],
)
def test_faulty_files_are_named(tmp_path: Path, content: str, parts: tuple[str, ...]) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text(content)
    with pytest.raises(CatalogueError) as caught:
        catalog.read(path, Gpu)
    assert all(part in str(caught.value) for part in (str(path), *parts)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"models\.yaml: no such catalogue file"):
        catalog.read(tmp_path / "models.yaml", Model)


def test_good_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text("chip:\n" + GPU_KEYS)
    chip = catalog.read(tmp_path / "gpus.yaml", Gpu)["chip"]
    assert (chip.id, chip.memory_bytes, chip.peak_flops_per_s("fp8")) == ("chip", 1000, 5.0)
