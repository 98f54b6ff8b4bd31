"""Triton model on the Python backend that generates text with transformers, for comparison with the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Called by Triton's Python backend. It serves one request at a time, which is what it is there to show."""

    def initialize(self, args: dict[str, str]) -> None:
        import torch
        from transformers import pipeline  # type: ignore[import-not-found]

        folder = json.loads(args["model_config"])["parameters"]["model_dir"]["string_value"]
        on_gpu = torch.cuda.is_available()
        self.generate: Any = pipeline(
            "text-generation",
            model=folder,
            device=0 if on_gpu else -1,
            torch_dtype=torch.float16 if on_gpu else torch.float32,
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
        limits = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().reshape(-1)
        if len(limits) not in (1, len(texts)):
            return _refusal(f"max_tokens must hold one number, or one per text ({len(texts)}), got {len(limits)}")
        made = [self._text(text.decode(), int(limits[min(i, len(limits) - 1)])) for i, text in enumerate(texts)]
        output = np.array([text.encode() for text in made], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)])

    def _text(self, text: str, max_tokens: int) -> str:
        made: str = self.generate(text, max_new_tokens=max_tokens, do_sample=False)[0]["generated_text"]
        return made


def _refusal(message: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
