"""Triton model `preprocessing`: turns text into token ids, and word lists into the form that the engine takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lab.reference.tokenizer import END, FILE_NAME, PAD


class TritonPythonModel:
    """Called by Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.tokenizer = Tokenizer.from_file(str(Path(parameters["tokenizer_dir"]["string_value"]) / FILE_NAME))
        self.adds_special_tokens = parameters["add_special_tokens"]["string_value"].lower() == "true"
        vocabulary = self.tokenizer.get_vocab()
        self.end_id, self.pad_id = vocabulary[END], vocabulary[PAD]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        query = _get(request, "QUERY")
        if query is None or query.shape[0] != 1 or query.size != 1:
            shape = None if query is None else query.shape
            return _refusal(
                f"Inflight batching backend expects requests with batch size of 1, got QUERY of shape {shape}."
            )
        ids = self._ids(query.reshape(-1)[0])
        outputs = {
            "INPUT_ID": np.array([ids], np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
            "REQUEST_OUTPUT_LEN": _get(request, "REQUEST_OUTPUT_LEN"),
            "BAD_WORDS_IDS": self._word_list(_get(request, "BAD_WORDS_DICT")),
            "STOP_WORDS_IDS": self._word_list(_get(request, "STOP_WORDS_DICT")),
            "OUT_END_ID": self._given_or("END_ID", request, self.end_id),
            "OUT_PAD_ID": self._given_or("PAD_ID", request, self.pad_id),
        }
        words, weights = _get(request, "EMBEDDING_BIAS_WORDS"), _get(request, "EMBEDDING_BIAS_WEIGHTS")
        if (0 if words is None else words.size) != (0 if weights is None else weights.size):
            return _refusal("embedding_bias_words and embedding_bias_weights must have the same length.")
        outputs["EMBEDDING_BIAS"] = self._bias(words, weights)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])

    def _ids(self, text: bytes) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text.decode(), add_special_tokens=self.adds_special_tokens).ids
        return ids

    def _given_or(self, name: str, request: Any, default: int) -> NDArray[np.int32]:
        given = _get(request, name)
        return np.array([[default]], np.int32) if given is None else given.astype(np.int32)

    def _word_list(self, words: NDArray[Any] | None) -> NDArray[np.int32]:
        """[1, 2, n]: row 0 has the ids of all words, row 1 the ends of the words, padded with -1; n = 0 without any."""
        words_ids = [] if words is None else [self._ids(word) for word in words.reshape(-1)]
        flat = [token for ids in words_ids for token in ids]
        ends = np.cumsum([len(ids) for ids in words_ids if ids], dtype=np.int32)
        table = np.full((1, 2, len(flat)), -1, np.int32)
        table[0, 0], table[0, 1, : len(ends)] = flat, ends
        return table

    def _bias(self, words: NDArray[Any] | None, weights: NDArray[Any] | None) -> NDArray[np.float32]:
        """[1, vocabulary], or [1, 0] without words."""
        if words is None or weights is None or not words.size:
            return np.zeros((1, 0), np.float32)
        bias = np.zeros((1, self.tokenizer.get_vocab_size()), np.float32)
        for word, weight in zip(words.reshape(-1), weights.reshape(-1), strict=True):
            bias[0, self._ids(word)] += weight
        return bias


def _get(request: Any, name: str) -> NDArray[Any] | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _refusal(message: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
