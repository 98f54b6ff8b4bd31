"""The load level, which every tool and release writes in another place and by another name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration.importers import read
from tests.calibration.importers.traffic import DEPLOYMENT

FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize(
    ("name", "keys", "value", "kind", "level"),
    [
        ("aiperf.json", ("phases",), [{"type": "gamma", "rate": 3.0}], "gamma_rate", 3),
        ("aiperf.json", ("phases",), [{"type": "constant", "rate": 3, "concurrency": 9}], "constant_rate", 3),
        ("genai_perf.json", ("perf_analyzer", "stimulus"), {"request_rate": 3.0}, "constant_rate", 3),
        ("genai_perf.json", ("perf_analyzer", "stimulus"), {"concurrency": 5}, "concurrency", 5),
    ],
)
def test_the_load_is_found_in_the_settings(
    name: str, keys: tuple[str, ...], value: object, kind: str, level: float, tmp_path: Path
) -> None:
    document = json.loads((FILES / name).read_text())
    inner = document["input_config"]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    assert loads_of(document, tmp_path) == [(kind, level)]


@pytest.mark.parametrize(
    ("older", "kind", "level"),
    [
        ({"concurrency": 7, "request_rate_mode": "concurrency_burst"}, "concurrency", 7),
        ({"request_rate": 2.5, "request_rate_mode": "constant"}, "constant_rate", 2.5),
        ({"request_rate": 2.5, "arrival_pattern": "poisson", "concurrency": 50}, "poisson_rate", 2.5),
    ],
)
def test_the_load_of_older_aiperf_releases(older: dict[str, object], kind: str, level: float, tmp_path: Path) -> None:
    document = json.loads((FILES / "aiperf.json").read_text())
    document["input_config"] = {"endpoint": {"model_names": ["tiny-chat"]}, "loadgen": older}
    assert loads_of(document, tmp_path) == [(kind, level)]
    (point,) = read(tmp_path / "changed.json", deployment=DEPLOYMENT)
    assert ("at most 50 requests in flight" in point.notes) == (older.get("concurrency") == 50)


@pytest.mark.parametrize(
    ("strategy", "kind", "level"),
    [
        ({"type_": "synchronous"}, "concurrency", 1),
        ({"type_": "throughput", "max_concurrency": 64}, "concurrency", 64),
        ({"type_": "throughput"}, "concurrency", 8),  # 7.56 were in flight on average
        ({"type_": "constant", "rate": 2.5}, "constant_rate", 2.5),
    ],
)
def test_the_load_of_guidellms_strategies(strategy: dict[str, object], kind: str, level: float, tmp_path: Path) -> None:
    document = json.loads((FILES / "guidellm_v2.json").read_text())
    document["benchmarks"][0]["config"]["strategy"] = strategy
    assert loads_of(document, tmp_path) == [(kind, level)]


def test_guidellms_throughput_without_a_limit_is_a_burst_and_void(tmp_path: Path) -> None:
    document = json.loads((FILES / "guidellm_v2.json").read_text())
    document["benchmarks"][0]["config"]["strategy"] = {"type_": "throughput"}
    (tmp_path / "burst.json").write_text(json.dumps(document))
    (point,) = read(tmp_path / "burst.json", deployment=DEPLOYMENT)
    assert point.verdict == "unsteady"


def test_vllms_burstiness_is_a_gamma_process(tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm.json").read_text()) | {"request_rate": 3, "burstiness": 0.5}
    assert loads_of(document, tmp_path) == [("gamma_rate", 3)]


@pytest.mark.parametrize("limit", [None, 8])
def test_a_rate_with_a_limit_of_vllm_holds_requests_back(limit: int | None, tmp_path: Path) -> None:
    document = json.loads((FILES / "vllm.json").read_text()) | {"request_rate": 18.5, "max_concurrency": limit}
    path = tmp_path / "capped.json"
    path.write_text(json.dumps(document))
    (point,) = read(path, deployment=DEPLOYMENT)
    assert (point.load_kind, point.load_value) == ("poisson_rate", 18.5)
    assert ("at most 8 requests in flight" in point.notes) == (limit is not None)


@pytest.mark.parametrize("limit", [None, 8, 10_240])
def test_a_rate_with_a_limit_of_guidellm_holds_requests_back(limit: int | None, tmp_path: Path) -> None:
    document = json.loads((FILES / "guidellm_v2.json").read_text())
    strategy = {"type_": "poisson", "rate": 18.5, "max_concurrency": limit}
    document["benchmarks"][0]["config"]["strategy"] = strategy
    document["benchmarks"][0]["metrics"]["request_concurrency"]["successful"]["max"] = 8.0
    path = tmp_path / "capped.json"
    path.write_text(json.dumps(document))
    (point,) = read(path, deployment=DEPLOYMENT)
    assert ("requests in flight: later ones were held back" in point.notes) == (limit == 8)


def loads_of(document: object, tmp_path: Path) -> list[tuple[str, float]]:
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    return [(point.load_kind, point.load_value) for point in read(path, deployment=DEPLOYMENT)]
