"""A tokenizer with one token per word, so that prompts and outputs have exactly the requested length."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from calibration.errors import ServerError
from lab.reference.settings import SPECIAL_TOKENS

FILE_NAME = "tokenizer.json"
PAD, END, UNKNOWN = SPECIAL_TOKENS

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou")


def words(count: int) -> list[str]:
    """`count` different pronounceable words, always the same.

    >>> words(3)
    ['baba', 'babe', 'babi']
    """
    base = len(_SYLLABLES)
    if count > base**2:
        raise ServerError(
            f"--vocab-size must be at most {base**2 + len(SPECIAL_TOKENS)}, got {count + len(SPECIAL_TOKENS)}"
        )
    return [_SYLLABLES[number // base] + _SYLLABLES[number % base] for number in range(count)]


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """A WordLevel tokenizer of `vocab_size` entries: ids 0, 1, 2 are pad, end and unknown, the rest are words.

    Encoding N known words gives N ids and nothing is added; decoding gives the words back with single spaces.

    >>> tokenizer = make_tokenizer(100)
    >>> tokenizer.encode("babe baba").ids
    [4, 3]
    >>> tokenizer.decode([4, 3])
    'babe baba'
    """
    entries = [*SPECIAL_TOKENS, *words(vocab_size - len(SPECIAL_TOKENS))]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(entries)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def save_tokenizer(folder: Path, vocab_size: int) -> Path:
    """Write `tokenizer.json` into `folder`: the file a client loads with `tokenizers.Tokenizer.from_file`."""
    path = folder / FILE_NAME
    make_tokenizer(vocab_size).save(str(path))
    return path
