"""Tokenizers from a folder with a tokenizer.json, or with anything else that transformers can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TYPES = ("auto", "llama", "t5")
USUAL_ENDS = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<|eot_id|>", "<|im_end|>")


class FastWording:
    """A tokenizer.json, read by `tokenizers`."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))
        named = _special_names(file.with_name("tokenizer_config.json"))
        end = self._id(named.get("eos_token"), *USUAL_ENDS)
        self.end_id = -1 if end is None else end
        pad = self._id(named.get("pad_token"), "<pad>")
        self.pad_id = self.end_id if pad is None else pad
        self.size = int(self._tokenizer.get_vocab_size())

    def _id(self, *names: str | None) -> int | None:
        known = (self._tokenizer.token_to_id(name) for name in names if name)
        return next((number for number in known if number is not None), None)

    def ids(self, text: str, adds_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=adds_special_tokens).ids)

    def texts(self, sequences: Sequence[Sequence[int]], skips_special_tokens: bool) -> list[str]:
        return list(self._tokenizer.decode_batch(sequences, skip_special_tokens=skips_special_tokens))


class SlowWording:
    """Any other tokenizer, read by `transformers`."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer  # type: ignore[import-not-found]

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.end_id = int(self._tokenizer.eos_token_id)
        pad = self._tokenizer.pad_token_id
        self.pad_id = self.end_id if pad is None else int(pad)
        self.size = len(self._tokenizer)

    def ids(self, text: str, adds_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=adds_special_tokens))

    def texts(self, sequences: Sequence[Sequence[int]], skips_special_tokens: bool) -> list[str]:
        return list(self._tokenizer.batch_decode(sequences, skip_special_tokens=skips_special_tokens))


def open_wording(parameters: Mapping[str, str]) -> FastWording | SlowWording:
    """The tokenizer that `tokenizer_dir` and `tokenizer_type` name.

    Raises:
        ValueError: the type is none of auto, llama and t5.
    """
    kind = parameters.get("tokenizer_type") or "auto"
    if kind not in TYPES:
        raise ValueError(f"Unexpected tokenizer type: {kind}")
    folder = Path(parameters["tokenizer_dir"])
    file = folder / "tokenizer.json"
    return FastWording(file) if file.exists() else SlowWording(str(folder))


def is_yes(text: str, default: bool) -> bool:
    """A boolean among the parameters; the default for anything but a clear yes or no."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), default)


def _special_names(config: Path) -> dict[str, str]:
    """The special tokens by role, as named in tokenizer_config.json."""
    if not config.exists():
        return {}
    entries = json.loads(config.read_text())
    named = {role: entries.get(role) for role in ("eos_token", "pad_token")}
    contents = {role: value.get("content") if isinstance(value, dict) else value for role, value in named.items()}
    return {role: value for role, value in contents.items() if isinstance(value, str)}
