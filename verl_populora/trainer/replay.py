"""verl's replay buffer with a reproducible order of samples."""

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

_POLL_SECONDS = 0.1  # verl's default of 2 s would be most of a short step


class OrderedReplayBuffer(ReplayBuffer):
    """Returns the samples of a step sorted by key, not by arrival, so that one seed gives one batch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, poll_interval=_POLL_SECONDS, **kwargs)

    def _materialize_batch(self, *args, **kwargs) -> KVBatchMeta:
        batch = super()._materialize_batch(*args, **kwargs)
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: batch.keys[i]))
        return batch
