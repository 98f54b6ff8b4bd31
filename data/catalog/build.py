"""Writes models.yaml from the models bundled with aiconfigurator-core: python data/catalog/build.py

Run it when that library's version changes; the planner reads the YAML only. Models that no engine builds are left out.
"""

import csv
import logging
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

from aiconfigurator_core.sdk.common import DefaultHFModels
from aiconfigurator_core.sdk.utils import get_model_config_from_model_path

from sizing.catalog import Model
from sizing.errors import CatalogueError
from sizing.estimate.checkpoints import describe, left_out
from sizing.estimate.kernels import BACKENDS, LIBRARY

PUBLISHED = {"DeepSeek-R1": (671e9, 37e9), "DeepSeek-V3": (671e9, 37e9)}
"""Sizes on the model card where the counted ones are off: the first three layers are dense, the database has none."""

HEADER = f"""\
# Models the planner knows. Written by data/catalog/build.py from the configurations bundled with {LIBRARY}.
# parameters: counted from layer shapes, embeddings included (DeepSeek V3 and R1: the model card's).
# unrouted: share of a mixture's experts that a token does not pass through.
# checkpoint: precision of the published weights (of the experts, where there are any).
# max_context_tokens: max_position_embeddings of that configuration, the model's longest prompt and output together.
# timings: engine -> GPUs on which the library's support matrix passes for aggregated serving.
"""


def timings() -> dict[str, dict[str, list[str]]]:
    """Model -> engine -> GPUs with status PASS in the library's support matrix."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for table in sorted(Path(str(files("aiconfigurator_core"))).glob("systems/support_matrix/*.csv")):
        with table.open(newline="") as file:
            for row in csv.DictReader(file):
                served = found[row["HuggingFaceID"]][row["Backend"]]
                if row["Mode"] == "agg" and row["Status"] == "PASS" and row["System"] not in served:
                    served.append(row["System"])
    return found


def max_context_tokens(model_id: str) -> int | None:
    """Longest context of the model by its bundled configuration; None where that does not say."""
    config = get_model_config_from_model_path(model_id)["raw_config"]
    places = (config, config.get("text_config") or {})
    return next((int(found) for place in places if (found := place.get("max_position_embeddings"))), None)


def entry(model: Model, served: dict[str, list[str]]) -> str:
    """One model as YAML."""
    context = max_context_tokens(model.id)
    size = next((size for name, size in PUBLISHED.items() if name in model.id), None)
    total, active = size or (model.parameters, model.active_parameters)
    lines = [
        f"{model.id}:",
        f"  name: {model.name}",
        f"  kind: {model.kind}",
        f"  checkpoint: {model.checkpoint}",
        *([f"  max_context_tokens: {context}"] if context else []),
        f"  parameters: {total:.4e}",
        f"  active_parameters: {active:.4e}",
        *([f"  unrouted: {round(left_out(model.id), 5)}"] if model.kind == "moe" else []),
        *(f"  {key}: {getattr(model, key)}" for key in ("layers", "heads", "kv_heads", "head_size")),
        f"  kv_values_per_token: {model.kv_values_per_token}",
    ]
    rows = [f"    {engine}: [{', '.join(served[engine])}]" for engine in BACKENDS if served.get(engine)]
    return "\n".join([*lines, *(["  timings:", *rows] if rows else [])])


def main() -> None:
    """Write models.yaml beside this file."""
    served = timings()
    entries = []
    for model_id in sorted(DefaultHFModels, key=str.casefold):
        try:
            entries.append(entry(describe(model_id), served[model_id]))
        except CatalogueError as error:
            logging.getLogger(__name__).warning("left out: %s", error)
    Path(__file__).with_name("models.yaml").write_text(HEADER + "\n" + "\n".join(entries) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
