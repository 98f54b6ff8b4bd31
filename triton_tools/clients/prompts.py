"""Which prompts a run sends: from a data set by the model's tokenizer, or random token ids."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from calibration.errors import FileError, PlanError
from calibration.target import Described
from triton_tools.clients.dataset import TOKENS_PER_WORD, FromDataset, from_dataset
from triton_tools.clients.synthetic import NormalLengths, RandomPrompts, random_prompts

DEFAULT_REQUESTS = 30_000
SMALLEST_VOCABULARY = 1000


class PromptTokenizer:
    """The tokenizer.json at `place`, or in the folder `place`, as `--tokenizer_dir` names them.

    Raises FileError if there is none that can be used. `add_special_tokens` is on by default, as it is in the clients
    when they encode a prompt.
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


def dataset_prompts(
    path: Path,
    served: Described,
    *,
    tokenizer_dir: Path | None,
    special: bool,
    first: int | None = None,
    max_input_len: int | None = None,
    op_tokens_per_word: float = TOKENS_PER_WORD,
) -> tuple[FromDataset, list[str]]:
    """The prompts of a data set for the model `served`, and what the reader should know about them.

    `special`: special tokens are added to the ids. Raises PlanError if the model takes token ids and no tokenizer is
    known, FileError if the data set or the tokenizer is wrong.
    """
    place = tokenizer_dir or served.tokenizer_file
    if place is None and served.contract.takes_token_ids:
        raise PlanError(f"model {served.contract.model!r} takes token ids: give --tokenizer_dir with a tokenizer.json")
    made = from_dataset(
        path,
        encode=None if place is None else PromptTokenizer(place, add_special_tokens=special).encode,
        first=first,
        max_input_len=max_input_len,
        op_tokens_per_word=op_tokens_per_word,
    )
    notes = []
    if place is None:
        notes.append("input lengths are words: no tokenizer is known, give --tokenizer_dir")
    if made.left_out:
        notes.append(f"{made.left_out} prompts were longer than --max_input_len {max_input_len}")
    return made, notes


def norm_dist_prompts(
    lengths: NormalLengths,
    served: Described,
    *,
    n: int | None,
    max_input_len: int | None,
    vocab_size: int | None,
    tokenizer_dir: Path | None,
    seed: int,
) -> tuple[RandomPrompts, list[str]]:
    """Random prompts for the model `served`, and what the reader should know about them.

    Raises PlanError if the model takes text, FileError if the tokenizer is wrong.
    """
    model = served.contract.model
    if not served.contract.takes_token_ids:
        raise PlanError(f"token_norm_dist sends token ids, model {model!r} takes text: use --dataset, or tensorrt_llm")
    vocabulary, notes = _vocabulary(vocab_size, tokenizer_dir or served.tokenizer_file)
    drawn = DEFAULT_REQUESTS if n is None else n
    prompts = random_prompts(lengths, drawn, vocabulary=vocabulary, max_input_len=max_input_len, seed=seed)
    if len(prompts) < drawn:
        notes.append(f"{drawn - len(prompts)} of {drawn} prompts were longer than --max_input_len {max_input_len}")
    return prompts, notes


def _vocabulary(given: int | None, place: Path | None) -> tuple[int, list[str]]:
    """How many token ids to draw from: the clients draw 31 bits, but an engine that looks ids up must have them."""
    if given is not None:
        return given, []
    if place is not None:
        return PromptTokenizer(place).vocabulary, []
    return SMALLEST_VOCABULARY, [f"prompts use token ids below {SMALLEST_VOCABULARY}; --vocab_size allows more"]
