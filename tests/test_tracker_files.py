"""TensorBoard and W&B, for real and offline: their files hold every metric of a step under its own name."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.selfplay_simulator import simulate

pytest.importorskip("verl")
pytestmark = pytest.mark.slow

STEPS = 3
LOG = """
import json, sys
from verl_populora.trainer.trackers import Trackers
trackers = Trackers("populora", "a run", ["tensorboard", "wandb"], {"trainer": {"device": "cpu"}, "seed": 7})
for line in open(sys.argv[1]):
    row = json.loads(line)
    trackers.log(row, step=row.pop("step"))
trackers.finish()
assert not trackers.failures, trackers.failures
"""


@pytest.fixture(scope="module")
def metrics(tmp_path_factory) -> Path:
    """metrics.jsonl as a run writes it, with numbers of every member."""
    return simulate(tmp_path_factory.mktemp("runs") / "run", steps=STEPS) / "metrics.jsonl"


@pytest.fixture(scope="module")
def folder(metrics, tmp_path_factory) -> Path:
    """What both trackers wrote about all steps, in a process of their own, without a network."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("trackers")
    environment = os.environ | {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "WANDB_DIR": str(folder),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", LOG, str(metrics)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    return folder


def rows(metrics: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def test_the_tensorboard_file_holds_every_metric_of_every_step(metrics, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    written = rows(metrics)
    assert {"member/teacher1/mu", "tasks/valid_rate", "time/step"} <= set(events.Tags()["scalars"])
    for name in set(written[0]) - {"step"}:
        expected = [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in written if name in row]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected


def test_an_offline_wandb_run_holds_every_metric_and_the_configuration(metrics, folder):
    (file,) = folder.rglob("run-*.wandb")
    configuration, history = {}, []
    for record in wandb_records(file.read_bytes()):
        for item in record.run.config.update:
            configuration[item.key] = json.loads(item.value_json)
        if record.HasField("history"):
            history.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
    assert configuration["seed"] == 7
    written = rows(metrics)
    assert [row["_step"] for row in history] == [row["step"] for row in written]
    for row, expected in zip(history, written, strict=True):
        assert {name: row[name] for name in expected if name != "step"} == pytest.approx(
            {name: value for name, value in expected.items() if name != "step"}
        )


def wandb_records(data: bytes) -> Iterator:
    """Records of a ``.wandb`` file: a seven-byte header, then LevelDB's log format (blocks of 32 KiB, chunks with
    checksum, length and type)."""
    from wandb.proto import wandb_internal_pb2

    block, header = 32768, 7
    position, parts = header, []
    while position + header <= len(data):
        if block - position % block < header:  # too little room for a chunk: zeros up to the next block
            position += block - position % block
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts.append(data[position + header : position + header + length])
        position += header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record
