"""The tokenizer that `--tokenizer_dir` names: texts to token ids, and how many ids there are."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from calibration.errors import FileError


class PromptTokenizer:
    """The tokenizer.json at `place`, or in the folder `place`. Raises FileError if there is none that can be used.

    `add_special_tokens` is on by default, as it is in the clients when they encode a prompt.
    """

    def __init__(self, place: Path, *, add_special_tokens: bool = True) -> None:
        path = place / "tokenizer.json" if place.is_dir() else place
        if not path.is_file():
            raise FileError(
                f"--tokenizer_dir {place}: no tokenizer.json there; save one with the tokenizer's save_pretrained"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise FileError(f"{path}: not a tokenizer ({' '.join(str(error).split())})") from None
        self._special = add_special_tokens

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=self._special).ids)

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return int(self._tokenizer.get_vocab_size())
