"""The model's own words, the tasks that it can do, and heads that have to pass a check."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dpmtv.data.demonstrations import read_demonstrations
from dpmtv.data.synthetic import synthetic_records
from dpmtv.errors import ModelError
from dpmtv.evaluation.benchmark import EMBEDDED_DATA
from dpmtv.head_selection import Selection
from dpmtv.models import synthetic
from dpmtv.models.synthetic import answer_words, answered_in_context
from dpmtv.pipeline import public_tasks, select_heads
from dpmtv.types import Demonstration, Prompt, Query

TEXT = ["meadow", "lantern", "kettle", "willow", "granite", "otter", "barrel", "Ab", "x9", "ok"]
SPECIAL = ["<bos>", "<image>", "<end_of_utterance>", "[UNK]"]
PROMPT = Prompt((), Query("", "?"))


def byte_level() -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([f" {w}" for w in TEXT] * 3, trainer)
    return core


def sentence_piece() -> Tokenizer:
    core = Tokenizer(models.BPE(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(special_tokens=SPECIAL, show_progress=False)
    core.train_from_iterator([f"Answer: {w}" for w in TEXT] * 3, trainer)
    return core


def whole_words() -> Tokenizer:
    core = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    core.train_from_iterator(TEXT, trainer)
    return core


def with_tokenizer(model, core: Tokenizer):
    """The model as if it had this tokenizer, for what needs no pass."""
    other = copy.copy(model)
    other.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<end_of_utterance>"
    )
    other.model = copy.copy(model.model)
    other.model.generation_config = copy.copy(model.model.generation_config)
    other.model.generation_config.eos_token_id = other.tokenizer.eos_token_id
    return other


@pytest.mark.parametrize("make", [byte_level, sentence_piece, whole_words])
def test_words_are_whole_and_of_one_token(model, make):
    other = with_tokenizer(model, make())
    words = answer_words(other)
    assert set(TEXT[:7]) <= set(words), "all lower-case words of three letters or more"
    assert all(re.fullmatch("[a-z]{3,}", w) for w in words)
    for word in words:
        (token, end) = other.answer_ids(PROMPT, word)
        assert other.tokenizer.decode([token]).strip() == word
        assert end in other.end_ids


def test_pieces_inside_a_word_are_no_words(model):
    other = with_tokenizer(model, byte_level())
    vocabulary = other.tokenizer.get_vocab()
    inside = {t for t in vocabulary if re.fullmatch("[a-z]{3,}", t)}
    assert inside, "or this test shows nothing"
    assert all(f"Ġ{word}" in vocabulary for word in answer_words(other))


def test_words_of_the_embedded_model(model):
    words = answer_words(model)
    assert words == answer_words(model)
    assert answer_words(model, 10) == words[:10]
    assert len(words) == len(set(words)) == synthetic.WORDS
    assert all(len(model.answer_ids(PROMPT, w)) == 2 for w in words)


def test_the_form_counts_in_which_answers_follow_the_prompt(model):
    """A word that is one token after a space may be several after a new line."""
    other = with_tokenizer(model, byte_level())
    other.processor = copy.copy(model.processor)
    other.processor.chat_template = model.processor.chat_template.replace("Answer:", "Answer:\n")
    other.processor.chat_template = other.processor.chat_template.replace(
        "{% else %} {{ part", "{% else %}{{ part"
    )
    assert other.render(PROMPT).endswith("Answer:\n")
    assert not set(TEXT[:7]) & set(answer_words(other))


@pytest.fixture(scope="module")
def known():
    """Rules that the embedded model has learnt, few records of each."""
    found: dict[str, list] = {}
    for record in read_demonstrations(EMBEDDED_DATA / "public.jsonl"):
        found.setdefault(record.task, []).append(record)
    return {task: records[:8] for task, records in found.items()}


TASKS = ("digit-greek", "digit-fruit", "color-english", "color-planet")


@pytest.fixture(scope="module")
def answered(model, known):
    records = [r for task in TASKS for r in known[task]]
    return answered_in_context(model, records, shots=2)


def test_what_is_answered_right_is_split(answered, known):
    assert {r.task for r in answered.records} == set(TASKS)
    assert len(answered.checks) == len(TASKS)
    for task, cases in zip(TASKS, answered.checks, strict=True):
        assert 1 <= len(cases) <= 2
        for prompt, answer in cases:
            assert len(prompt.demonstrations) == synthetic.SHOWN
            (record,) = [r for r in known[task] if r.query == prompt.query and r.answer == answer]
            assert record not in answered.records
            assert record not in prompt.demonstrations


def test_tasks_that_the_model_cannot_do_are_left_out(model, known, monkeypatch):
    no_rule = [
        replace(r, answer=known["color-planet"][i].answer[::-1] + str(i), task="none")
        for i, r in enumerate(known["color-english"])
    ]
    records = [*no_rule, *(r for task in TASKS[:2] for r in known[task])]
    with pytest.raises(ModelError, match=r"can do 2 of 3 synthetic tasks.*--public FILE"):
        answered_in_context(model, records, shots=2)
    monkeypatch.setattr(synthetic, "_LEAST_TASKS", 2)
    kept = answered_in_context(model, records, shots=2)
    assert {r.task for r in kept.records} == set(TASKS[:2])


class OneAnswer:
    """Says the same whatever it is asked."""

    def answer_ids(self, _prompt, _answer):
        return [0, 1]

    def prepare(self, prompts, batch_size):
        return prompts

    def generate(self, prompts, _most):
        return ["kettle"] * len(prompts)


def test_right_by_chance_or_without_a_choice_is_not_enough(monkeypatch):
    """One of two answers, said throughout, is right for half of a task's records."""

    def record(task: int, place: int) -> Demonstration:
        answer = "willow" if task == 4 and place % 2 else "kettle"
        return Demonstration("", f"{place}?", answer, task=str(task))

    records = [record(t, i) for t in range(5) for i in range(10)]
    with pytest.raises(ModelError, match="0 of 1 synthetic tasks with several answers"):
        answered_in_context(OneAnswer(), records, synthetic.SHOWN)
    monkeypatch.setattr(synthetic, "_LEAST_TASKS", 0)
    kept = answered_in_context(OneAnswer(), records, synthetic.SHOWN)
    assert len(kept.checks) == 4
    assert {r.task for r in kept.records} == set("0123")


def test_a_search_that_fails_the_check_is_tried_again(model, answered):
    tasks = public_tasks(model, answered.records, 2, private_query=True)
    vectors = [task.vector for task in tasks]
    good = select_heads(model, tasks, "every-step", 12, check=answered).heads
    assert 0 < good.sum() < model.layout.n_heads
    bad = np.zeros_like(good)
    bad[-1] = True
    masks = iter([bad, good, bad])
    seeds, told = [], []

    def search(seed: int) -> Selection:
        seeds.append(seed)
        return Selection(next(masks), np.zeros(len(good)), np.zeros(1))

    def progress(*what: object) -> None:
        told.append(what)

    found = answered.search(model, vectors, "every-step", search, progress)
    assert (found.heads == good).all()
    assert seeds == [0, 1], "the third is not needed"
    ((what, done, total),) = told
    assert re.fullmatch(r"check: \d+% of the in-context gain", what)
    assert done == total
    masks = iter([bad, bad, bad])
    with pytest.raises(ModelError, match=r"after 3 searches; 80% are needed.*--public FILE"):
        answered.search(model, vectors, "every-step", search)


def test_the_embedded_model_finds_its_heads_on_drawn_shapes(model):
    """The generator as it is: what needs seeing, of the tasks with plain colours and shapes."""
    plain = re.compile("color|shape|circle|round")
    records = [
        r
        for r in synthetic_records(answer_words(model), records=12)
        if r.task.endswith("seen") and plain.search(r.question)
    ]
    made = answered_in_context(model, records, shots=1)
    answers: dict[str, set] = {}
    for record in made.records:
        answers.setdefault(record.task, set()).add(record.answer)
    assert sum(len(several) > 1 for several in answers.values()) >= 5
    tasks = public_tasks(model, made.records, 1, private_query=False)
    found = select_heads(model, tasks, "every-step", 60, check=made)  # raises below 80 %
    assert 0 < found.heads.sum() < model.layout.n_heads
