"""Writes models.yaml from the configurations of configs.yaml and those bundled with aisimulate:

    python data/catalog/build.py

Run it when either changes; the planner reads models.yaml only.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from sizing.catalog import Model
from sizing.errors import CatalogueError
from sizing.estimate.checkpoints import describe
from sizing.estimate.kernels import BACKENDS, LIBRARY, MISSING, available
from sizing.files import read_yaml

HERE = Path(__file__).parent
HEADER = f"""\
# Models the planner knows. Written by data/catalog/build.py from the configurations of configs.yaml and those bundled
# with {LIBRARY}; counted by sizing/estimate/checkpoints.py.
# parameters: counted from layer shapes, embeddings included; of several modalities, those of the language model.
# active_parameters: without the table of which a token takes a row, where the output has another.
# unrouted: share of a mixture's experts that a token does not pass through.
# state_values: what a sequence keeps whatever its length, of which kv_values_per_token has the 4,096th part.
# checkpoint: precision of the published weights (of the experts, where there are any).
# max_context_tokens: max_position_embeddings of that configuration, the model's longest prompt and output together; of
# Step 3.7 Flash, whose bundled configuration has less, by its card.
# timings: engine -> GPUs on which the library's support matrix passes for aggregated serving.
"""


UNCHECKED = ("deepseek-ai/DeepSeek-V4.1-Flash", "meta-models/Muse-Glimmer-30B")
"""Bundled, but what the reader counts of them could not be checked against a published size."""

CONTEXTS = dict.fromkeys(("stepfun-ai/Step-3.7-Flash", "stepfun-ai/Step-3.7-Flash-FP8"), 2**18)
"""By the model's card, where the bundled configuration has less."""


def timings() -> dict[str, dict[str, list[str]]]:
    """Model -> engine -> GPUs with status PASS in the library's support matrix."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for table in sorted(Path(str(files("aisimulate_core"))).glob("systems/support_matrix/*.csv")):
        with table.open(newline="") as file:
            for row in csv.DictReader(file):
                served = found[row["HuggingFaceID"]][row["Backend"]]
                if row["Mode"] == "agg" and row["Status"] == "PASS" and row["System"] not in served:
                    served.append(row["System"])
    return found


def bundled() -> Iterator[Model]:
    """The models whose configurations the library bundles; one that cannot be read is left out, and told."""
    for file in sorted(Path(str(files("aisimulate_core"))).glob("model_configs/*_config.json")):
        model_id = file.name.removesuffix("_config.json").replace("--", "/")
        if not file.name.endswith("_hf_quant_config.json") and model_id not in UNCHECKED:
            beside = file.with_name(file.name.replace("_config.json", "_hf_quant_config.json"))
            packed = json.loads(beside.read_bytes()) if beside.exists() else {}
            try:
                yield describe(json.loads(file.read_bytes()), model_id, display(model_id), packed)
            except CatalogueError as error:
                print(f"left out: {error}")


def ours() -> Iterator[Model]:
    """The models of configs.yaml."""
    for model_id, given in read_yaml(HERE / "configs.yaml", "file of configurations").items():
        yield describe(given["config"], model_id, display(model_id))


def display(model_id: str) -> str:
    """A name for a screen."""
    name = model_id.rpartition("/")[2].removeprefix("Meta-").removesuffix("-hf")
    return name.replace("-", " ").replace("_", ".")


def entry(model: Model, served: dict[str, list[str]]) -> str:
    """One model as YAML."""
    context = CONTEXTS.get(model.id, model.max_context_tokens)
    lines = [
        f"{model.id}:",
        f"  name: {model.name}",
        f"  kind: {model.kind}",
        f"  checkpoint: {model.checkpoint}",
        *([f"  max_context_tokens: {context}"] if context else []),
        f"  parameters: {model.parameters:.4e}",
        f"  active_parameters: {model.active_parameters:.4e}",
        *([f"  unrouted: {round(model.unrouted, 8)}"] if model.kind == "moe" else []),
        *(f"  {key}: {getattr(model, key)}" for key in ("layers", "heads", "kv_heads", "head_size")),
        f"  kv_values_per_token: {model.kv_values_per_token}",
        *([f"  state_values: {model.state_values}"] if model.state_values else []),
    ]
    rows = [f"    {engine}: [{', '.join(served[engine])}]" for engine in BACKENDS if served.get(engine)]
    return "\n".join([*lines, *(["  timings:", *rows] if rows else [])])


def main() -> None:
    """Write models.yaml beside this file."""
    if not available():  # and on the path from here on
        raise SystemExit(MISSING)
    served = timings()
    found = {model.id: model for model in (*ours(), *bundled())}
    entries = [entry(found[model_id], served[model_id]) for model_id in sorted(found, key=str.casefold)]
    (HERE / "models.yaml").write_text("\n".join([HEADER, *entries, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
