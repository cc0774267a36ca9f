"""An entropy bonus that differs by adapter, on top of verl's policy loss."""

# verl carries no types.
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss
from verl.workers.utils.padding import no_padding_2_padding


class EntropyBonus:
    """verl's loss, less ``c (mean entropy)`` over each adapter's samples, aggregated as the loss itself is.

    Args:
        loss_function: verl's, with its configuration as the keyword ``config``; its own entropy term stays.
        coefficients: by adapter id, ``c`` in addition to what ``config.entropy_coeff`` applies to everybody.
    """

    def __init__(self, loss_function: Callable, coefficients: Mapping[int, float]):
        self._loss = loss_function
        self._coefficients = coefficients
        self.keywords: Mapping[str, Any] = loss_function.keywords  # type: ignore[attr-defined]

    def __call__(self, model_output, data: TensorDict, dp_group=None):
        """Loss and metrics of one micro-batch.

        Raises:
            ValueError: entropies were not computed.
        """
        loss, metrics = self._loss(model_output=model_output, data=data, dp_group=dp_group)
        if model_output.get("entropy") is None:
            raise ValueError("an entropy bonus needs entropies; set actor_rollout_ref.actor.calculate_entropy=true")
        config = self.keywords["config"]
        entropy = no_padding_2_padding(model_output["entropy"], data)  # (samples, response tokens)
        mask = data.select("response_mask").to_padded_tensor()["response_mask"].bool()
        ids = data["adapter_id"].flatten().tolist()
        weights = torch.tensor([self._coefficients.get(i, 0.0) for i in ids], device=entropy.device)
        bonus = agg_loss(
            loss_mat=entropy * weights[:, None],
            loss_mask=mask,
            loss_agg_mode=config.loss_agg_mode,
            **config.global_batch_info,
        )
        return loss - bonus, metrics
