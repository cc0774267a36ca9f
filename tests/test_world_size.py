"""Checkpoints and the number of training ranks: real engines on one rank and on two (gloo, processes of their own)."""

# verl carries no types.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

import multiprocessing
import os
from pathlib import Path

import pytest
import torch.distributed as dist
from safetensors.torch import load_file

pytest.importorskip("verl")

from tests.engine_setup import batch_of, make_engine, ppo_partial, sample  # noqa: E402
from verl_populora.engine.actor import PopulationEngine  # noqa: E402
from verl_populora.engine.worker import PopulationWorker  # noqa: E402

pytestmark = pytest.mark.slow
MODEL = Path(__file__).parents[1] / "recipes" / "tiny_base" / "model"
NAMES = {seat: f"{seat}-g0" for seat in ("teacher1", "student1")}


class Worker(PopulationWorker):
    """The Ray worker's methods on an engine of this process."""

    def __init__(self, engine: PopulationEngine):
        self.engine = engine

    @property
    def _engine(self) -> PopulationEngine:
        return self.engine


def as_rank(rank, world, folder, seed):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    store = folder / f"store{world}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    return Worker(make_engine(MODEL, teachers=1, students=1, seed=seed))


def save(worker, folder):
    folder.mkdir(exist_ok=True)
    worker.save_members(str(folder), NAMES, {seat: {} for seat in NAMES})


def train_and_save(folder):
    worker = as_rank(0, 1, folder, seed=1)
    with worker.engine.train_mode(disable_auto_offload=True):
        samples = [sample(1, 9, 1.0), sample(1, 5, -1.0), sample(2, 12, 1.0)]
        worker.engine.train_batch(batch_of(samples), ppo_partial())
    save(worker, folder / "one")


def resume_on_two(rank, folder):
    worker = as_rank(rank, 2, folder, seed=2)
    worker.load_members(str(folder / "one"), NAMES)
    if rank == 0:
        (folder / "two").mkdir()
    dist.barrier()
    save(worker, folder / "two")
    # A disk that refuses the first rank: the second must not wait for it.
    with pytest.raises(OSError, match="can't write to"):
        worker.save_members(str(folder / "one" / "engine.json" / "below"), NAMES, {seat: {} for seat in NAMES})
    (folder / f"raised{rank}").touch()


def run(target, *argument_lists):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=arguments) for arguments in argument_lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_a_checkpoint_resumes_on_another_number_of_ranks_and_no_rank_waits_for_a_failed_one(tmp_path):
    run(train_and_save, (tmp_path,))
    run(resume_on_two, (0, tmp_path), (1, tmp_path))
    one, two = tmp_path / "one", tmp_path / "two"
    tensors = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert len(tensors) == 4
    for path in tensors:
        first, second = load_file(one / path), load_file(two / path)
        assert first and first.keys() == second.keys()
        assert all(first[name].equal(second[name]) for name in first), path
    assert (one / "engine.json").read_text() == (two / "engine.json").read_text()
    assert all((tmp_path / f"raised{rank}").exists() for rank in (0, 1))
