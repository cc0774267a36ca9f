"""Advantages of sampled completions, one number for each sample, spread over its tokens by the caller.

Shapes: ``scores`` (samples,) hold one terminal reward each, discounted by nothing; ``lengths`` (samples,)
count response tokens, at least 1. Rows whose member or cell is None only fill up a batch and get advantage 0.
"""

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

EPSILON = 1e-8  # added to variances; keeps a batch of equal rewards at 0


def reinforce_group_baseline(
    scores: np.ndarray, groups: Sequence[Hashable], members: Sequence[Hashable | None], lengths: np.ndarray
) -> np.ndarray:
    """REINFORCE++ with a group baseline, scaled within each member.

        c_i = r_i - mean of the rewards in i's group
        A_i = c_i / sqrt(sum_j l_j c_j^2 / sum_j l_j + EPSILON)     over all samples j of i's member

    The group's mean is over samples, the scale over tokens. The scaled values are not centred again: a
    second, token-weighted mean would give groups of equal rewards an advantage that depends on the lengths of
    others. So a group of equal rewards, and a group of one, has advantage exactly 0.

    Source: REINFORCE++ (arXiv 2501.03262), the variant with a baseline; whitening restricted to one adapter.

    Args:
        groups: (samples,) samples of one prompt share a name; a group belongs to one member.
        members: (samples,) whose sample it is.

    Returns:
        (samples,) float64 advantages.

    Raises:
        ValueError: shapes disagree, a reward is not finite, or a group has two members.
    """
    scores, lengths = _checked(scores, lengths, groups, members)
    owners: dict[Hashable, Hashable] = {}
    for group, member in zip(groups, members, strict=True):
        if member is not None and owners.setdefault(group, member) != member:
            raise ValueError(f"group {group!r} has samples of {owners[group]!r} and of {member!r}")
    centred = np.zeros_like(scores)
    for rows in _rows_by_label([None if m is None else g for g, m in zip(groups, members, strict=True)]):
        if np.ptp(scores[rows]) > 0:
            centred[rows] = scores[rows] - scores[rows].mean()
    advantages = np.zeros_like(scores)
    for rows in _rows_by_label(members):
        variance = np.average(centred[rows] ** 2, weights=lengths[rows])
        advantages[rows] = centred[rows] / np.sqrt(variance + EPSILON)
    return advantages


def task_relative(scores: np.ndarray, cells: Sequence[Hashable | None], lengths: np.ndarray) -> np.ndarray:
    """TRR++: REINFORCE++ whitened separately in every cell, a cell being one role on one task kind.

        m = sum_j l_j r_j / L,   v = sum_j l_j (r_j - m)^2 / (L - 1),   L = sum_j l_j     over j in i's cell
        A_i = (r_i - m) / sqrt(v + EPSILON)

    Mean and variance are over response tokens, each of which carries its sample's reward (no discount), with
    Bessel's correction. Equal rewards, or a cell of one token, give 0.

    Source: Absolute Zero (arXiv 2505.03335), task-relative REINFORCE++, as its code computes it.

    Args:
        cells: (samples,) the role and task kind of each sample.

    Returns:
        (samples,) float64 advantages.

    Raises:
        ValueError: shapes disagree or a reward is not finite.
    """
    scores, lengths = _checked(scores, lengths, cells)
    advantages = np.zeros_like(scores)
    for rows in _rows_by_label(cells):
        tokens = lengths[rows].sum()
        if np.ptp(scores[rows]) == 0 or tokens < 2:
            continue
        deviation = scores[rows] - np.average(scores[rows], weights=lengths[rows])
        variance = (lengths[rows] * deviation**2).sum() / (tokens - 1)
        advantages[rows] = deviation / np.sqrt(variance + EPSILON)
    return advantages


def _rows_by_label(labels: Sequence[Hashable | None]) -> Iterator[np.ndarray]:
    """Row indices of every label but None, in order of first appearance."""
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        if label is not None:
            rows.setdefault(label, []).append(row)
    return (np.array(indices) for indices in rows.values())


def _checked(
    scores: np.ndarray, lengths: np.ndarray, *labels: Sequence[Hashable | None]
) -> tuple[np.ndarray, np.ndarray]:
    scores, lengths = np.asarray(scores, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    if scores.ndim != 1 or any(len(other) != len(scores) for other in (lengths, *labels)):
        sizes = ", ".join(str(len(other)) for other in (lengths, *labels))
        raise ValueError(f"scores have shape {scores.shape}, lengths and labels {sizes} entries: one a sample")
    if not np.isfinite(scores).all():
        raise ValueError(f"rewards are not finite in rows {np.flatnonzero(~np.isfinite(scores))[:10].tolist()}")
    used = np.array([all(label is not None for label in row) for row in zip(*labels, strict=True)], dtype=bool)
    if (lengths[used] < 1).any():
        raise ValueError(f"rows without response tokens: {np.flatnonzero(used & (lengths < 1))[:10].tolist()}")
    return scores, lengths
