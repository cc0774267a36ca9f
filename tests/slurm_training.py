"""Train a real population over the two nodes of a SLURM cluster on this machine, stop it, let it resume, evaluate it.

    python -m tests.slurm_training DIRECTORY

Ray over both nodes, verl with a training process and a vLLM engine on each, through ``recipes/slurm/submit.sh`` as a
user would call it. After two steps the job gets the signal that SLURM sends before a time limit. Then a second job
evaluates every member on both nodes. Takes about a quarter of an hour on two cores, needs root, SLURM and about 12 GB
of memory, and prints one JSON object.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from eval.store import Store
from tests.eval_support import ROOT, TINY_BASE, humaneval_rows, lcb_rows, write_jsonl
from tests.slurm_cluster import SlurmCluster, why_not

STEPS = 5
BENCHMARKS = "humaneval_plus,livecodebench"  # in their formats, with problems of our own: no download
# What both nodes say they have; it is one machine.
RAY_NODE = "--num-cpus=8 --object-store-memory=300000000"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


def submit(slurm: SlurmCluster, folder: Path, what: str, *arguments: str, **environment: str) -> int:
    """The number of a job on both nodes, whose output goes to ``folder``/``what``.log."""
    command = ["bash", str(ROOT / "recipes/slurm/submit.sh"), what, "--nodes", "2", "--gpus", "0", "--time", "00:50:00"]
    text = slurm.run(*command, f"--output={folder}/{what}.log", *arguments, LOGS=f"{folder}/{what}-logs", **environment)
    return int(text.split()[-1])


def steps(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(line)["training/global_step"] for line in path.read_text().splitlines()] if path.exists() else []


def train(slurm: SlurmCluster, folder: Path) -> dict[str, object]:
    run = folder / "run"
    began = time.monotonic()
    options = (f"trainer.total_training_steps={STEPS}", "population.evolution.interval=2", "trainer.save_freq=100")
    job = submit(slurm, folder, "quickstart", *options, RUN_DIR=str(run), RAY_NODE_OPTIONS=RAY_NODE)
    while len(steps(run)) < 2:
        if slurm.job(job)["JobState"] in ENDED:
            raise RuntimeError((folder / "quickstart.log").read_text())
        time.sleep(0.5)
    slurm.run("scancel", "--batch", "--signal=USR1", str(job))
    done = slurm.wait(job, ENDED, 2400)
    return {
        "state": done["JobState"],
        "restarts": int(done["Restarts"]),
        "steps": steps(run),
        "checkpoints": sorted(path.name for path in (run / "checkpoints").iterdir()),
        "report": (run / "report/report.html").exists(),
        "s": round(time.monotonic() - began),
    }


def evaluate(slurm: SlurmCluster, folder: Path) -> dict[str, object]:
    data, out = folder / "data", folder / "eval"
    write_jsonl(data / "livecodebench_test.jsonl", lcb_rows())
    write_jsonl(data / "humanevalplus.jsonl", humaneval_rows())
    began = time.monotonic()
    options = ("--unpinned-data", "--limit", "2", "--max-tokens", "16", "--dtype", "float32", "--max-num-seqs", "4")
    environment = {"BASE": str(TINY_BASE), "DATA_DIR": str(data), "OUT": str(out), "BENCHMARKS": BENCHMARKS}
    job = submit(slurm, folder, "eval", str(folder / "run"), "--", *options, **environment)
    done = slurm.wait(job, ENDED, 1200)
    parts = [len(path.read_text().splitlines()) for path in (out / "completions").glob("*.jsonl")]
    return {
        "state": done["JobState"],
        "completions_by_node": parts,
        "members": sorted({row.member for row in Store(out).read_plan()}),
        "table": (out / "table.md").exists(),
        "s": round(time.monotonic() - began),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where everything is written; must not exist")
    folder = parser.parse_args().directory.resolve()
    if reason := why_not():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True)
    (folder / "cluster").mkdir()
    with SlurmCluster(folder / "cluster") as slurm:
        result = {"train": train(slurm, folder), "eval": evaluate(slurm, folder)}
    print(json.dumps(result, indent=2))
    trained = result["train"]
    as_expected = trained["restarts"] == 1 and trained["steps"] == list(range(1, STEPS + 1)) and trained["report"]
    return 0 if as_expected and result["eval"]["state"] == "COMPLETED" and result["eval"]["table"] else 1


if __name__ == "__main__":
    sys.exit(main())
