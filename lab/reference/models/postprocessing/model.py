"""Triton model `postprocessing`: turns token ids into text, and passes probabilities and logits on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lab.reference.tokenizer import FILE_NAME

PASSED_THROUGH = ("CUM_LOG_PROBS", "OUTPUT_LOG_PROBS", "CONTEXT_LOGITS", "GENERATION_LOGITS")


class TritonPythonModel:
    """Called by Triton's Python backend for each token of each stream, so it does as little as possible."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.tokenizer = Tokenizer.from_file(str(Path(parameters["tokenizer_dir"]["string_value"]) / FILE_NAME))
        self.skips_special_tokens = parameters["skip_special_tokens"]["string_value"].lower() == "true"

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
        outputs = [pb_utils.Tensor("OUTPUT", self._text(tokens, lengths))]
        for name in PASSED_THROUGH:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                outputs.append(pb_utils.Tensor(f"OUT_{name}", tensor.as_numpy()))
        return pb_utils.InferenceResponse(outputs)

    def _text(self, tokens: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.object_]:
        """One text per beam, [beams], from ids [1, beams, L], of which the first `lengths` [1, beams] count.

        It has no batch dimension, whatever the configuration declares, because the backend's clients expect none.
        """
        beams = [beam[:length].tolist() for beam, length in zip(tokens[0], lengths[0], strict=True)]
        texts = self.tokenizer.decode_batch(beams, skip_special_tokens=self.skips_special_tokens)
        return np.array([text.encode() for text in texts], dtype=np.object_)
