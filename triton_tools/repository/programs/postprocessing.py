"""Triton model `postprocessing`: turns token ids into text, and passes probabilities and logits on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from wording import is_yes, open_wording  # type: ignore[import-not-found]  # beside this file in the repository

PASSED_THROUGH = ("CUM_LOG_PROBS", "OUTPUT_LOG_PROBS", "CONTEXT_LOGITS", "GENERATION_LOGITS")


class TritonPythonModel:
    """Called by Triton's Python backend for each token of each stream, so it does as little as possible."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.wording = open_wording(parameters)
        self.skips_special_tokens = is_yes(parameters.get("skip_special_tokens", ""), True)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH")
        text = self._text(tokens, None if lengths is None else lengths.as_numpy())
        outputs = [pb_utils.Tensor("OUTPUT", text)]
        for name in PASSED_THROUGH:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                outputs.append(pb_utils.Tensor(f"OUT_{name}", tensor.as_numpy()))
        return pb_utils.InferenceResponse(outputs)

    def _text(self, tokens: NDArray[np.int32], lengths: NDArray[np.int32] | None) -> NDArray[np.object_]:
        """One text per beam, [beams], from ids [1, beams, L], of which the first `lengths` [1, beams] count.

        It has no batch dimension, whatever the configuration declares, because the backend's clients expect none.
        """
        ends = [tokens.shape[-1]] * tokens.shape[1] if lengths is None else lengths[0].tolist()
        beams = [beam[:end].tolist() for beam, end in zip(tokens[0], ends, strict=True)]
        texts = self.wording.texts(beams, self.skips_special_tokens)
        return np.array([text.encode() for text in texts], dtype=np.object_)
