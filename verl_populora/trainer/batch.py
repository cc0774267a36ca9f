"""One step's samples, read back from verl's TransferQueue, and the figures of each member."""

# verl and TransferQueue carry no types.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportCallIssue=false

from dataclasses import dataclass

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from verl_populora.layout import PopulationLayout


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """What one seat's samples of a step look like."""

    samples: int
    tokens: int  # response tokens
    reward: float  # mean
    entropy: float  # nats, mean over tokens
    gap_max: float  # largest |p_rollout - p_trainer| over tokens
    gap_mean: float

    def as_metrics(self, seat: str) -> dict[str, float]:
        return {
            f"member/{seat}/samples": self.samples,
            f"member/{seat}/tokens": self.tokens,
            f"member/{seat}/reward": self.reward,
            f"member/{seat}/response_length": self.tokens / self.samples,
            f"member/{seat}/entropy": self.entropy,
            f"member/{seat}/logprob_gap": self.gap_max,
            f"member/{seat}/logprob_gap_mean": self.gap_mean,
        }


def real_rows(batch: KVBatchMeta) -> list[int]:
    """Positions of the rows that are samples, not padding."""
    return [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def member_figures(batch: KVBatchMeta, layout: PopulationLayout) -> dict[str, MemberFigures]:
    """Figures of every seat that has samples; needs the trainer's log-probabilities to be computed."""
    rows = real_rows(batch)
    fields = ["adapter_id", "rm_scores", "entropy", "rollout_log_probs", "old_log_probs"]
    data = tq.kv_batch_get(keys=[batch.keys[i] for i in rows], partition_id=batch.partition_id, select_fields=fields)
    ids = data["adapter_id"].flatten().tolist()
    scores, entropies = data["rm_scores"].unbind(), data["entropy"].unbind()
    rollout, trainer = data["rollout_log_probs"].unbind(), data["old_log_probs"].unbind()
    figures = {}
    for adapter_id in sorted(set(ids)):
        mine = [i for i, other in enumerate(ids) if other == adapter_id]
        gaps = torch.cat([(rollout[i].exp() - trainer[i].exp()).abs() for i in mine])
        figures[layout.seat_of(adapter_id)] = MemberFigures(
            samples=len(mine),
            tokens=int(gaps.numel()),
            reward=float(np.mean([float(scores[i].sum()) for i in mine])),
            entropy=float(torch.cat([entropies[i] for i in mine]).mean()),
            gap_max=float(gaps.max()),
            gap_mean=float(gaps.mean()),
        )
    return figures


def check_canary(figures: dict[str, MemberFigures], max_gap: float, mean_gap: float) -> None:
    """Stop when a member's samples can't have come from the weights that are about to be trained.

    Raises:
        CanaryError: naming the members, the numbers and the likely causes.
    """
    bad = {seat: f for seat, f in figures.items() if not (f.gap_max <= max_gap and f.gap_mean <= mean_gap)}
    if not bad:
        return
    lines = [
        f"{seat}: token probabilities differ by up to {f.gap_max:.2e} (limit {max_gap:.0e}), "
        f"on average {f.gap_mean:.2e} (limit {mean_gap:.0e}), over {f.tokens} tokens"
        for seat, f in sorted(bad.items())
    ]
    raise CanaryError(
        "the rollout engine and the trainer disagree about samples of this step:\n  " + "\n  ".join(lines) + "\n"
        "The samples would be off-policy without anyone noticing. Likely causes: an adapter that reached the engine "
        "late, under another id or with swapped projections; a stale prefix cache; a tokenizer shorter than the "
        "model's vocabulary; different temperature, dtype or attention settings on the two sides. If the gap is only "
        "low precision, raise population.canary.max_gap and population.canary.mean_gap."
    )


class CanaryError(RuntimeError):
    """Rollout and trainer log-probabilities of the same tokens differ by more than rounding."""
