"""Prompts: exact token counts, no two alike from the first tokens on, the same again for the same seed."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from calibration.errors import PlanError
from calibration.requests import Encoder, Request, TokenizerFile, WordCounter, requests
from sizing.workload import Lengths

WORDS = [f"w{number}" for number in range(50)]


def word_level(folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def byte_pairs(folder: Path) -> Path:
    """A BPE tokenizer trained on a few words, which puts <s> before every text when special tokens are asked for."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    corpus = ["the cat sat on the mat and the dog ate the hat of the fat rat"] * 20
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>"], show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def take(n: int, lengths: Lengths, encoder: Encoder, seed: int = 0) -> list[Request]:
    return list(islice(requests(lengths, encoder, np.random.default_rng(seed)), n))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("make", [word_level, byte_pairs])
def test_prompts_have_exactly_isl_tokens_by_the_tokenizer_itself(make: object, special: bool, tmp_path: Path) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    tokenizer = Tokenizer.from_file(str(path))
    for request in take(40, Lengths(30, 8, isl_cv=0.7), TokenizerFile(path, add_special_tokens=special)):
        assert len(tokenizer.encode(request.prompt, add_special_tokens=special).ids) == request.isl
        assert request.token_ids is not None
        assert len(request.token_ids) == request.isl


@given(isl=st.integers(2, 40), seed=st.integers(0, 1000))
def test_prompts_differ_from_their_first_token_on(isl: int, seed: int) -> None:
    encoder = WordCounter()
    drawn = take(len(encoder.words) + 50, Lengths(isl, 4), encoder, seed)
    opening = [request.prompt.split()[0] for request in drawn]
    assert len(set(opening[: len(encoder.words)])) == len(encoder.words)
    assert all(len(request.prompt.split()) == isl for request in drawn)


def test_a_small_vocabulary_still_gives_no_prompt_twice(tmp_path: Path) -> None:
    prompts = [request.prompt for request in take(1500, Lengths(16, 4), TokenizerFile(word_level(tmp_path)))]
    assert len(set(prompts)) == len(prompts)


def test_the_seed_decides() -> None:
    lengths = Lengths(20, 10, isl_cv=1, osl_cv=1)
    assert take(30, lengths, WordCounter(), 1) == take(30, lengths, WordCounter(), 1)
    assert take(30, lengths, WordCounter(), 1) != take(30, lengths, WordCounter(), 2)


def test_lengths_have_the_means_asked_for() -> None:
    drawn = take(4000, Lengths(50, 20, isl_cv=0.5, osl_cv=1), WordCounter())
    assert np.mean([request.isl for request in drawn]) == pytest.approx(50, rel=4 * 0.5 / 4000**0.5)
    assert np.mean([request.osl for request in drawn]) == pytest.approx(20, rel=4 / 4000**0.5)


def test_a_length_that_special_tokens_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no prompt of exactly 1 tokens"):
        take(1, Lengths(1, 4), TokenizerFile(byte_pairs(tmp_path), add_special_tokens=True))


@pytest.mark.parametrize(("content", "says"), [("{", "cannot be read"), (json.dumps({"a": 1}), "not a tokenizer")])
def test_a_faulty_tokenizer_file_is_one_line(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(PlanError, match=says):
        TokenizerFile(path)
    with pytest.raises(PlanError, match="no such tokenizer"):
        TokenizerFile(tmp_path / "absent.json")
