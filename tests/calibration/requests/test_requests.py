"""Prompts: exact token counts, no two alike from the first tokens on, the same again for the same seed."""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from calibration.errors import PlanError
from calibration.requests.lengths import LengthsPlan, SessionsPlan
from calibration.requests.source import PromptRequest, RequestSource
from calibration.requests.tokens import ServerCount, TokenizerFile, WordCounter

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


def two_words_one_token(folder: Path) -> Path:
    """A BPE over whole texts, with a token across a space: ids of words then depend on their neighbours."""
    vocab = {token: number for number, token in enumerate(["a", "b", "c", " ", "a ", "a b", " c", " b", " a"])}
    merges = [("a", " "), ("a ", "b"), (" ", "c"), (" ", "b"), (" ", "a")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def source(plan: LengthsPlan, tokenizer: Path | None = None, special: bool = False, seed: int = 0) -> RequestSource:
    return RequestSource(plan, tokenizer, special, (seed, 7))


def take(n: int, source: RequestSource, shard: int = 0, shards: int = 1) -> list[PromptRequest]:
    return list(itertools.islice(source.requests(shard, shards), n))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("make", [word_level, byte_pairs])
def test_prompts_have_exactly_isl_tokens_by_the_tokenizer_itself(make: object, special: bool, tmp_path: Path) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    tokenizer = Tokenizer.from_file(str(path))
    for request in take(40, source(LengthsPlan(isl=30, osl=8, isl_cv=0.7), path, special)):
        assert len(tokenizer.encode(request.prompt, add_special_tokens=special).ids) == request.isl
        assert request.token_ids == tuple(tokenizer.encode(request.prompt, add_special_tokens=special).ids)


def test_words_that_meet_in_one_token_are_not_taken_one_by_one(tmp_path: Path) -> None:
    encoder = TokenizerFile(two_words_one_token(tmp_path))
    for numbers in itertools.product(range(len(encoder.words)), repeat=3):
        text, ids = encoder.prompt(numbers)
        assert ids == encoder.encode(text)


@settings(max_examples=20, deadline=None)
@given(isl=st.integers(2, 40), seed=st.integers(0, 1000))
def test_prompts_differ_from_their_first_token_on(isl: int, seed: int) -> None:
    words = len(WordCounter.words)
    drawn = take(words + 50, source(LengthsPlan(isl=isl, osl=4), seed=seed))
    opening = [request.prompt.split()[0] for request in drawn]
    assert len(set(opening[:words])) == words
    assert all(len(request.prompt.split()) == isl for request in drawn)


def test_a_small_vocabulary_still_gives_no_prompt_twice(tmp_path: Path) -> None:
    plan = LengthsPlan(isl=16, osl=4, shared_prefix=12)
    prompts = [request.prompt for request in take(1500, source(plan, word_level(tmp_path)))]
    assert len(set(prompts)) == len(prompts)


@settings(max_examples=60, deadline=None)
@given(prefix=st.integers(1, 30), isl=st.integers(1, 40), seed=st.integers(0, 100))
def test_a_shared_prefix_is_shared_and_what_follows_is_not(prefix: int, isl: int, seed: int) -> None:
    drawn = take(20, source(LengthsPlan(isl=isl, osl=4, shared_prefix=prefix), seed=seed))
    words = [request.prompt.split() for request in drawn]
    shared = min(prefix, isl - 1)
    assert len({tuple(prompt[:shared]) for prompt in words}) == 1
    assert len({prompt[shared] for prompt in words}) == len(words)
    assert all(len(prompt) == isl for prompt in words)


@settings(max_examples=60, deadline=None)
@given(shards=st.integers(1, 7), seed=st.integers(0, 100))
def test_a_request_is_the_same_however_many_shards_there_are(shards: int, seed: int) -> None:
    whole = source(LengthsPlan(isl=[2, 30], osl=10, osl_cv=1.0), seed=seed)
    parts = [take(5, whole, shard, shards) for shard in range(shards)]
    assert take(5 * shards, whole) == [parts[number % shards][number // shards] for number in range(5 * shards)]


def test_the_seed_decides() -> None:
    plan = LengthsPlan(isl=20, osl=10, isl_cv=1, osl_cv=1)
    assert take(30, source(plan, seed=1)) == take(30, source(plan, seed=1))
    assert take(30, source(plan, seed=1)) != take(30, source(plan, seed=2))
    one, longer = (take(1, RequestSource(plan, None, False, seed))[0] for seed in ((7,), (7, 0)))
    assert one.prompt.split()[1:] != longer.prompt.split()[1:]


def test_lengths_have_the_means_asked_for() -> None:
    drawn = take(4000, source(LengthsPlan(isl=50, osl=20, isl_cv=0.5, osl_cv=1.0)))
    assert np.mean([request.isl for request in drawn]) == pytest.approx(50, rel=4 * 0.5 / 4000**0.5)
    assert np.mean([request.osl for request in drawn]) == pytest.approx(20, rel=4 / 4000**0.5)


@pytest.mark.parametrize("plan", [LengthsPlan(isl=400, osl=800).varied(), LengthsPlan(isl=[1, 999], osl=[1, 999])])
@pytest.mark.parametrize(("shards", "most"), [(1, 0.6), (2, 0.75), (4, 0.95), (8, 0.95)])
def test_few_requests_in_a_row_have_the_mean_lengths_where_those_are_even(
    plan: LengthsPlan, shards: int, most: float
) -> None:
    """Of each process's own requests too; drawn one by one, the means of n scatter by the law's cv over root n."""
    said, n = plan.summary(), 16

    def scatter(evenly: bool) -> np.ndarray:
        sources = (replace(source(plan, seed=seed), evenly=evenly) for seed in range(150))
        rows = [[(one.isl, one.osl) for one in take(n, own, shards - 1, shards)] for own in sources]
        means = np.array(rows).mean(axis=1) / (said.isl, said.osl)
        return np.asarray(means.std(axis=0) / (said.isl_cv / n**0.5, said.osl_cv / n**0.5))

    assert scatter(False) == pytest.approx([1, 1], rel=0.25)
    assert np.all(scatter(True) <= most)


def test_a_source_goes_to_another_process(tmp_path: Path) -> None:
    here = source(LengthsPlan(isl=[5, 9], osl=3), word_level(tmp_path))
    assert take(5, pickle.loads(pickle.dumps(here))) == take(5, here)


def test_texts_of_a_data_set_are_counted_by_the_tokenizer(tmp_path: Path) -> None:
    path = byte_pairs(tmp_path)
    tokenizer = Tokenizer.from_file(str(path))
    items = [
        {"input": "the cat sat", "instruction": "on the mat", "output": "the dog"},
        {"input": "the", "output": "a"},
    ]
    (tmp_path / "d.json").write_text(json.dumps(items))
    asked = source(LengthsPlan(dataset="d.json").within(tmp_path), path, special=True)
    found = take(6, asked)
    for number, request in enumerate(found):
        assert request.token_ids == tuple(tokenizer.encode(request.prompt).ids)
        assert request.isl == len(request.token_ids)
        answer = tokenizer.encode(items[number % 2]["output"], add_special_tokens=False)
        assert request.osl == len(answer.ids)
    assert asked.summary().isl == np.mean([request.isl for request in found])
    assert asked.summary().osl == np.mean([request.osl for request in found])


def test_a_length_that_special_tokens_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no prompt of exactly 1 tokens"):
        take(1, source(LengthsPlan(isl=1, osl=4), byte_pairs(tmp_path), special=True))


def test_lengths_drawn_below_what_the_tokenizer_can_make_are_its_shortest_prompt(tmp_path: Path) -> None:
    found = take(300, source(LengthsPlan(isl=4, osl=4, isl_cv=1.5), byte_pairs(tmp_path), special=True))
    shortest = min(request.isl for request in found)
    assert shortest > 1 and sum(request.isl == shortest for request in found) > 50
    assert all(len(request.token_ids or ()) == request.isl for request in found)


def test_prompts_that_a_chat_template_is_longer_than_are_refused() -> None:
    """The server puts 90 tokens around each prompt: of 50 on average none can be made, of 300 nearly all."""
    seen = ServerCount(added=90)
    for isl, cv, says in (
        (50, 0.3, "the 90 tokens that the server puts around"),
        (100, 0.3, "isl"),
        (50, 0, "the server adds 90"),
    ):
        with pytest.raises(PlanError, match=says):
            take(1, RequestSource(LengthsPlan(isl=isl, osl=8, isl_cv=cv), None, False, (0,), seen))
    sent = take(300, RequestSource(LengthsPlan(isl=300, osl=8, isl_cv=0.3), None, False, (0,), seen, evenly=True))
    assert np.mean([request.isl for request in sent]) == pytest.approx(300, rel=0.03)


def test_a_faulty_tokenizer_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content, says in ((b"{", "not a tokenizer"), (b'{"a": 1}', "not a tokenizer"), (b"\xff", "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(PlanError, match=says):
            TokenizerFile(path)
    with pytest.raises(PlanError, match="no such tokenizer"):
        TokenizerFile(tmp_path / "absent.json")


WORDS_OF_50 = ServerCount(ids=(100, 150))
talks = st.builds(
    SessionsPlan,
    turns=st.floats(1, 6),
    first_tokens=st.floats(3, 40),
    user_tokens=st.floats(1, 20),
    output_tokens=st.floats(1, 20),
    first_cv=st.floats(0, 1),
    user_cv=st.floats(0, 1),
    output_cv=st.floats(0, 1),
    think_s=st.floats(0, 5),
    system_tokens=st.integers(0, 40),
    context_tokens=st.sampled_from([0, 400]),
)


@settings(max_examples=40)
@given(talk=talks, seed=st.integers(0, 1000), shards=st.integers(1, 3))
def test_each_turn_of_a_session_repeats_all_that_was_said_and_the_server_s_own_answer(
    talk: SessionsPlan, seed: int, shards: int
) -> None:
    source = RequestSource(LengthsPlan(sessions=talk), None, False, (seed, 7), WORDS_OF_50)
    firsts = list(itertools.islice(source.requests(), 12))
    heads = {request.token_ids[: talk.system_tokens] for request in firsts if request.token_ids}
    assert len(heads) == 1, "a system prompt is the same for all"
    assert len({request.token_ids[talk.system_tokens :] for request in firsts if request.token_ids}) == len(firsts)
    # Sessions whose first turn outgrows the context are left out, so a number is no place in a row.
    dealt = {each.token_ids for shard in range(shards) for each in itertools.islice(source.requests(shard, shards), 12)}
    assert {request.token_ids for request in firsts} <= dealt
    for request in firsts:
        said: tuple[int, ...] = ()
        for turn in itertools.count():
            assert request.turn == turn and request.token_ids is not None
            assert request.isl == len(request.token_ids) and request.osl >= 1
            assert request.token_ids[: len(said)] == said and request.isl > len(said)
            assert not talk.context_tokens or request.isl + request.osl <= talk.context_tokens
            if request.then is None:
                break
            answer = tuple(range(1000, 1000 + request.osl))
            said = request.token_ids + answer
            think_s, request = request.then(answer)
            assert think_s >= 0


def test_a_plan_of_sessions_has_the_lengths_of_the_workload() -> None:
    """Fixed lengths, by hand: prompts of 8 turns grow by 80 + 20 tokens each from 100 on."""
    talk = SessionsPlan(turns=8, turn_law="fixed", first_tokens=90, user_tokens=80, output_tokens=20, system_tokens=10)
    found = LengthsPlan(sessions=talk).summary()
    assert (found.isl, found.osl, found.osl_cv) == (100 + 3.5 * 100, 20, 0)
    assert found.isl_cv == pytest.approx(np.std(np.arange(8) * 100) / 450)
    assert talk.mean_turns == 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"turns": 0.5}, "turns must be from 1"),
        ({"turns": 2e4}, "turns must be at most 10000"),
        ({"turns": 2.5, "turn_law": "fixed"}, "whole number"),
        ({"output_tokens": 2e6}, "output_tokens must be at most"),
        ({"think": "20s", "think_s": 20.0}, "think and think_s exclude each other"),
        ({"think": "a while"}, "think"),
        ({"context_tokens": 50}, "no first turn fits in context_tokens, 50"),
        ({"sessions": 3}, "extra"),
    ],
)
def test_sessions_that_cannot_be(change: dict[str, Any], says: str) -> None:
    good = {"turns": 6.0, "first_tokens": 800.0, "user_tokens": 80.0, "output_tokens": 200.0}
    SessionsPlan(**good)
    with pytest.raises(ValidationError, match=says):
        SessionsPlan(**(good | change))


def test_sessions_need_prompts_of_token_ids() -> None:
    talk = SessionsPlan(turns=2, first_tokens=8, user_tokens=8, output_tokens=8)
    with pytest.raises(PlanError, match="name the tokenizer"):
        take(1, source(LengthsPlan(sessions=talk)))
