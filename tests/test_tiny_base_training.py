"""The tiny base's tokenizer, its packed rows, and its training."""

import json
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from recipes.tiny_base.dataset import KINDS, make_chunk
from recipes.tiny_base.documents import PROMPTS_FILE, write_document
from recipes.tiny_base.tokenizer import build_tokenizer
from recipes.tiny_base.train import TrainingConfig, batch_of, train

MODEL = PROMPTS_FILE.parent / "model"
TEXTS = [write_document(Random(seed)).text for seed in range(300)]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_the_shipped_tokenizer_is_the_built_one_also_when_loaded_as_qwen2(tokenizer):
    """AutoTokenizer swaps the pre-tokenizer of qwen2 folders; the encoding must not depend on it."""
    shipped = AutoTokenizer.from_pretrained(MODEL)
    assert shipped.get_vocab() == tokenizer.get_vocab()
    assert shipped(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert len(shipped) == AutoConfig.from_pretrained(MODEL).vocab_size
    assert shipped.decode(shipped(TEXTS[0])["input_ids"]) == TEXTS[0]


def test_tokenizer_is_lossless_and_pieces_encode_like_the_whole(tokenizer):
    documents = [write_document(Random(seed)) for seed in range(300)]
    for document in documents:
        whole = tokenizer(document.text)["input_ids"]
        assert tokenizer.decode(whole) == document.text
        assert whole == [token for piece in document.pieces for token in tokenizer(piece.text)["input_ids"]]


def test_chat_template_opens_the_thinking_tag(tokenizer):
    messages = [{"role": "user", "content": "Propose a task.\n"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nPropose a task.\n<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_chunks_are_reproducible_full_and_made_of_whole_documents(tokenizer):
    chunk = make_chunk(tokenizer, seed=0, index=3, level=1.0, rows=40, length=256)
    again = make_chunk(tokenizer, seed=0, index=3, level=1.0, rows=40, length=256)
    assert np.array_equal(chunk.ids, again.ids)
    assert not np.array_equal(chunk.ids, make_chunk(tokenizer, 0, 4, 1.0, 40, 256).ids)
    assert (chunk.documents >= 0).mean() > 0.9
    for row in range(5):
        for number in range(chunk.documents[row].max() + 1):
            text = tokenizer.decode(chunk.ids[row][chunk.documents[row] == number])
            assert text.startswith("<|im_start|>user\n") and text.endswith("</answer><|im_end|>")


def test_batches_neither_attend_nor_predict_across_documents(tokenizer):
    chunk = make_chunk(tokenizer, seed=0, index=0, level=0.5, rows=4, length=256)
    batch = batch_of(chunk, slice(0, 4))
    documents = torch.from_numpy(chunk.documents)
    row = 1
    boundary = int((documents[row] == 0).sum())
    assert not batch.mask[row, 0, boundary, :boundary].any()
    assert batch.mask[row, 0, boundary - 1, :boundary].all()
    assert not batch.mask[row, 0, 0, 1:].any()
    assert batch.weights[row, boundary - 1] == 0
    assert batch.targets[row, 0] == batch.ids[row, 1]
    assert batch.positions[row, boundary] == 0


@pytest.mark.slow
def test_training_learns_and_a_stopped_run_continues_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.tiny_base.train.CHUNK_STEPS", 10)
    sizes = {"rows": 2, "hidden_size": 32, "layers": 1, "heads": 1, "intermediate_size": 32}
    config = TrainingConfig(steps=40, warmup_steps=5, decay_steps=20, threads=1, compile=False, **sizes)
    train(config, tmp_path / "whole" / "model", save_every=10)
    log = [json.loads(line) for line in (tmp_path / "whole/training/log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == [10, 20, 30, 40]
    assert all(log[-1]["loss"][kind] < log[0]["loss"][kind] for kind in KINDS)

    class Stopped(Exception):
        pass

    def stop_after_save(path, *rest):
        save_state(path, *rest)
        raise Stopped

    from recipes.tiny_base.train import save_state

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("recipes.tiny_base.train.save_state", stop_after_save)
        train(config, tmp_path / "parts" / "model", save_every=10)
    train(config, tmp_path / "parts" / "model", save_every=10)
    whole, parts = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
