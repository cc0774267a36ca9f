"""Packed training rows.

A chunk of rows is a pure function of (seed, index, level), so that a run can stop and resume.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from transformers import PreTrainedTokenizerBase

from recipes.tiny_base.documents import DocumentKind, write_document
from recipes.tiny_base.tokenizer import PAD, token_id

KINDS = tuple(DocumentKind)
PATIENCE = 60
"""Documents in a row that fit nowhere before a chunk counts as full."""

Encoded = tuple[list[int], list[float], int]  # token ids, loss weight of each, index of the kind


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of packed documents; every array has shape (rows, length)."""

    ids: np.ndarray  # token ids, the padding token where nothing fitted
    weights: np.ndarray  # loss weight of each token as a target
    positions: np.ndarray  # position within the document
    documents: np.ndarray  # index of the document within the row, -1 for padding
    kinds: np.ndarray  # index into KINDS, -1 for padding


def make_chunk(
    tokenizer: PreTrainedTokenizerBase, seed: int, index: int, level: float, rows: int, length: int
) -> Chunk:
    """Chunk ``index`` of the stream ``seed`` at curriculum stage ``level``; longer documents are left out."""
    rng = Random(f"{seed}/{index}")
    packed = _pack(_encoded(tokenizer, rng, level), rows, length)
    rng.shuffle(packed)
    chunk = Chunk(
        ids=np.full((rows, length), token_id(tokenizer, PAD), np.int16),
        weights=np.zeros((rows, length), np.float32),
        positions=np.zeros((rows, length), np.int16),
        documents=np.full((rows, length), -1, np.int16),
        kinds=np.full((rows, length), -1, np.int8),
    )
    for row, documents in enumerate(packed):
        start = 0
        for number, (ids, weights, kind) in enumerate(documents):
            span = (row, slice(start, start + len(ids)))
            chunk.ids[span] = ids
            chunk.weights[span] = weights
            chunk.positions[span] = np.arange(len(ids))
            chunk.documents[span] = number
            chunk.kinds[span] = kind
            start += len(ids)
    return chunk


def _encoded(tokenizer: PreTrainedTokenizerBase, rng: Random, level: float, batch: int = 100) -> Iterator[Encoded]:
    while True:
        documents = [write_document(rng, level) for _ in range(batch)]
        pieces = [piece.text for document in documents for piece in document.pieces]
        encoded = iter(tokenizer(pieces)["input_ids"])
        for document in documents:
            ids: list[int] = []
            weights: list[float] = []
            for piece in document.pieces:
                tokens = next(encoded)
                ids += tokens
                weights += [piece.weight] * len(tokens)
            yield ids, weights, KINDS.index(document.kind)


def _pack(documents: Iterator[Encoded], rows: int, length: int) -> list[list[Encoded]]:
    """Best-fit packing, until ``PATIENCE`` documents running fit into no row."""
    packed: list[list[Encoded]] = [[] for _ in range(rows)]
    free = np.full(rows, length)
    misses = 0
    for document in documents:
        room = np.where(free >= len(document[0]), free, length + 1)
        row = int(room.argmin())
        if room[row] > length:
            misses += 1
            if misses == PATIENCE:
                break
            continue
        misses = 0
        packed[row].append(document)
        free[row] -= len(document[0])
    return packed
