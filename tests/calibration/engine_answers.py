"""Runs the scenarios of test_engine_lora.py and test_engine_logits.py in the reference environment: JSON in, JSON out.

Beside the engine stand a forward pass from the formulas alone and weights that were changed by hand.
"""

import json
import sys
from typing import Any

import numpy as np
import torch

from lab.reference.engine.answers import Answer
from lab.reference.engine.inputs import ALL_OUTPUTS, read_request
from lab.reference.engine.request import Request
from lab.reference.engine.transformer import Transformer
from lab.reference.engine.worker import build_engine
from tests.calibration.adapter_files import make_adapter
from tests.calibration.engine_trace import from_formulas

SHAPE = ("hidden", "layers", "heads", "kv_heads")


def serve(parameters: dict[str, str], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """All requests on one engine; of each, its answer's parts or its whole answer, and its logits by hand."""
    engine, limits = build_engine(parameters)
    model = {name: int(parameters[name]) for name in SHAPE}
    widest = {"rows": 0, "groups": 0}
    forward = engine.model.forward

    def watching(step: Any, *rest: Any) -> torch.Tensor:
        widest["rows"] = max(widest["rows"], len(step.token_ids))
        widest["groups"] = max(widest["groups"], len(step.adapted))
        return forward(step, *rest)

    engine.model.forward = watching  # type: ignore[method-assign]
    answers: dict[Request, tuple[int, Answer]] = {}
    said: list[list[dict[str, Any]]] = []

    def work() -> None:
        while engine.has_work:
            for token in engine.step():
                number, answer = answers[token.request]
                answer.add(token)
                if token.request.is_streamed and token.id is not None:
                    said[number].append(answer.part())
                elif token.is_last:
                    said[number].append(answer.whole())

    for number, entry in enumerate(requests):
        outputs = entry.get("outputs", ALL_OUTPUTS)
        request = read_request(_tensors(entry, model), limits, engine.model.shape, outputs)
        answers[request] = number, Answer(request, outputs, [] if entry.get("excludes_prompt") else request.prompt)
        said.append([])
        engine.add(request)
        if entry.get("waits"):  # the next one comes when this one is done
            work()
    work()
    listed = [[{name: array.tolist() for name, array in part.items()} for part in parts] for parts in said]
    formulas = [
        by_hand(parameters, entry["prompt"] + answer.ids, entry.get("adapter")) if entry.get("compare") else None
        for entry, (_, answer) in zip(requests, answers.values(), strict=True)
    ]
    keys = [[request.reuse_key, request.may_reuse] for request in answers]
    return {"said": listed, **widest, "keys": keys, "formulas": formulas}


def by_hand(parameters: dict[str, str], tokens: list[int], adapter: dict[str, Any] | None) -> list[list[float]]:
    """Logits [n, vocab] of a sequence from the formulas alone, the adapter's B A added to the weights themselves."""
    engine, _ = build_engine(parameters)
    if adapter is not None:
        model = {name: int(parameters[name]) for name in SHAPE}
        weights, config = make_adapter(model, **adapter)
        for values, (module, layer, size) in zip(weights[0], config[0].tolist(), strict=True):
            _change(engine.model, values, module, layer, size)
    logits: list[list[float]] = from_formulas(engine.model, tokens).tolist()
    return logits


def _change(model: Transformer, values: np.ndarray, module: int, layer: int, size: int) -> None:
    own, shape = model.layers[layer], model.shape
    query, key = shape.hidden, shape.kv_heads * shape.head_dim
    weight = {
        0: own.qkv,
        1: own.qkv[:query],
        2: own.qkv[query : query + key],
        3: own.qkv[query + key :],
        4: own.out,
        5: own.gate_up.chunk(2)[0],
        6: own.down,
        7: own.gate_up.chunk(2)[1],
    }[module]
    outputs, inputs = weight.shape
    numbers = torch.tensor(values.astype(np.float32))
    down = numbers[: size * inputs].view(size, inputs)
    up = numbers[size * inputs :][: outputs * size].view(outputs, size)
    weight += up @ down


def _tensors(entry: dict[str, Any], model: dict[str, int]) -> dict[str, np.ndarray]:
    tensors = {
        "input_ids": np.array([entry["prompt"]], np.int32),
        "input_lengths": np.array([[len(entry["prompt"])]], np.int32),
        "request_output_len": np.array([[entry["max_tokens"]]], np.int32),
    }
    tensors |= {name: np.array([[value]]) for name, value in entry.get("scalars", {}).items()}
    if entry.get("adapter"):
        tensors["lora_weights"], tensors["lora_config"] = make_adapter(model, **entry["adapter"])
    return tensors


if __name__ == "__main__":
    json.dump([serve(**scenario) for scenario in json.load(sys.stdin)], sys.stdout)
