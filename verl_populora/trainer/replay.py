"""verl's replay buffer with a reproducible order of samples."""

from collections.abc import Callable

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_populora.selfplay.groups import Group

_POLL_SECONDS = 0.1  # verl's default of 2 s would be most of a short step


class OrderedReplayBuffer(ReplayBuffer):
    """Returns the samples of a step sorted by adapter and key, not by arrival.

    One seed then gives one batch; and the samples of an adapter lie together in every micro-batch, which its mixed
    LoRA layers handle as one product.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, poll_interval=_POLL_SECONDS, **kwargs)
        # Called while waiting; raises when the samples can't come any more. verl itself would wait for ever for the
        # episodes of a rollout worker that has died.
        self.watch: Callable[[], None] = lambda: None

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.watch()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _materialize_batch(self, *args, **kwargs) -> KVBatchMeta:
        batch = super()._materialize_batch(*args, **kwargs)
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: _place(batch.keys[i])))
        return batch


def _place(key: str) -> tuple[int, str]:
    group = Group.parse(key.rsplit("_", 2)[0])
    assert group is not None, "padding is added after sampling"
    return group.adapter_id, key
