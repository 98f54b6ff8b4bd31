"""A file of every format: those in files/, and those of single requests, made here."""

from __future__ import annotations

from pathlib import Path

from calibration.importers import read
from sizing.points import Point
from tests.calibration.importers.traffic import (
    DEPLOYMENT,
    Law,
    aiperf_jsonl,
    closed_loop,
    guidellm,
    openai_export,
    profile_export,
    vllm_detailed,
)

FILES = Path(__file__).parent / "files"
ALL_SAID: dict[str, object] = {**DEPLOYMENT, "isl": 50, "osl": 12}
FEW = closed_loop(Law(osl=4), users=2, each=4)
SAMPLES: dict[str, bytes] = {path.name: path.read_bytes() for path in sorted(FILES.iterdir())} | {
    "aiperf.jsonl": aiperf_jsonl(FEW).encode(),
    "triton_export.json": profile_export(FEW, empty_first_s=0.001, empty_final_s=0.03).encode(),
    "triton_ids_export.json": profile_export(FEW, ids=True, empty_final_s=0.03).encode(),
    "openai_export.json": openai_export(FEW).encode(),
    "guidellm_requests.json": guidellm(FEW).encode(),
    "vllm_detailed.json": vllm_detailed(FEW).encode(),
}


def imported(raw: bytes | str, folder: Path, **said: object) -> list[Point]:
    path = folder / "file"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass"))
    return read(path, deployment={**ALL_SAID, **said})
