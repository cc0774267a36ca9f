"""Members of a finished or running run, as folders that other programs load.

    python -m verl_populora.export RUN --member best --format peft

``peft`` copies the member's PEFT folder; ``merged`` writes a whole model in the base's dtype, the adapter added to its
weights; ``vllm`` writes PEFT folders and ``serve.sh``, which serves them beside the base. Each member gets its own
folder with a model card. An output folder appears whole or not at all, and an existing one is never touched.
"""

import argparse
import difflib
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_populora.adapters.peft_io import CONFIG_FILE, WEIGHTS_FILE, read_peft
from verl_populora.members import Role
from verl_populora.memory import engine_rank
from verl_populora.rundir import Record, RunDirError, RunReader
from verl_populora.trainer import checkpoints

FORMATS = ("peft", "merged", "vllm")
_CARD_METRICS = ("fitness", "mu", "sigma", "reward", "response_length", "entropy")


class ExportError(ValueError):
    """Nothing was written; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint of a run."""

    folder: Path
    step: int
    base_model: str
    members: tuple[Record, ...]  # as in population.json
    metrics: Record  # the line of metrics.jsonl with this step; empty when there is none

    def metric(self, member: Record, name: str) -> float | None:
        """A member's value at this step; None where it was not measured on this very member.

        A member born at this step has trained on nothing yet: its seat's values are its predecessor's.
        """
        if member["birth_step"] == self.step and member["generation"] > 0:
            return None
        return self.metrics.get(f"member/{member['seat']}/{name}")


def read_checkpoint(run: Path, step: int | None) -> Checkpoint:
    """The checkpoint of ``step``, the newest by default.

    Raises:
        ExportError: there is none.
        RunDirError: ``run`` is not a run directory.
    """
    reader = RunReader(run)
    root = run / "checkpoints"
    folder = checkpoints.latest(root)
    if folder is None:
        raise ExportError(f"{run} has no complete checkpoint yet; they are written every trainer.save_freq steps")
    if step is not None:
        folder = root / f"step_{step}"
        if not folder.is_dir():
            steps = sorted(checkpoints.step_of(path) for path in root.glob("step_*") if path.is_dir())
            raise ExportError(f"{run} has no checkpoint of step {step}; it has {', '.join(map(str, steps))}")
    state = json.loads((folder / "population.json").read_text(encoding="utf-8"))
    metrics = next((line for line in reader.metrics() if line["step"] == state["step"]), {})
    return Checkpoint(folder, state["step"], state["base_model"], tuple(state["members"]), metrics)


def choose(checkpoint: Checkpoint, wanted: str, role: str | None) -> tuple[Record, ...]:
    """Members by name, ``all``, or ``best``: the one of ``role`` with the highest fitness at the checkpoint's step.

    Args:
        role: teacher, student or agent; None means students for ``best`` (the agent of a single-agent run) and
            everyone for ``all``.

    Raises:
        ExportError: no such member or role, or no fitness to choose by.
    """
    members = checkpoint.members
    if wanted not in ("all", "best"):
        names = [member["name"] for member in members]
        if wanted not in names:
            # A seat's name is the likeliest mistake: its founder has gone, its present holder has a generation.
            near = [m["name"] for m in members if m["seat"] == wanted] or difflib.get_close_matches(wanted, names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ExportError(
                f"{checkpoint.folder} holds no member {wanted!r}; {hint}its members are {', '.join(names)}"
            )
        return tuple(member for member in members if member["name"] == wanted)
    roles = {member["role"] for member in members}
    if role is None and wanted == "best":
        role = Role.AGENT if roles == {Role.AGENT} else Role.STUDENT
    candidates = tuple(member for member in members if role in (None, member["role"]))
    if not candidates:
        raise ExportError(f"{checkpoint.folder} holds no {role}; its roles are {', '.join(sorted(roles))}")
    if wanted == "all" or len(candidates) == 1:
        return candidates
    rated = [(fitness, m) for m in candidates if (fitness := checkpoint.metric(m, "fitness")) is not None]
    if not rated:
        raise ExportError(
            f"no {role} has a fitness at step {checkpoint.step} (members born in the last step have none yet); choose "
            f"one by name: {', '.join(member['name'] for member in candidates)}"
        )
    return (max(rated, key=lambda pair: pair[0])[1],)


def export(checkpoint: Checkpoint, members: Sequence[Record], form: str, output: Path) -> list[Path]:
    """Write ``output/<member name>/`` for each member; returns these folders.

    Raises:
        ExportError: ``output`` exists, or the base model is not where the run found it.
    """
    if output.exists():
        raise ExportError(f"{output} exists; remove it or choose another place with --output")
    if form == "merged" and checkpoint.base_model.startswith("/") and not Path(checkpoint.base_model).is_dir():
        raise ExportError(f"the base model {checkpoint.base_model} is gone; a merged model needs it (--base elsewhere)")
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for member in members:
            target = partial / member["name"]
            source = checkpoint.folder / member["adapter"]
            if form == "merged":
                _write_merged(source, checkpoint.base_model, target)
            else:
                _copy_adapter(source, checkpoint.base_model, target)
            (target / "README.md").write_text(model_card(checkpoint, member, form), encoding="utf-8")
        if form == "vllm":
            script = partial / "serve.sh"
            script.write_text(_serve_script(checkpoint.base_model, partial, members), encoding="utf-8")
            script.chmod(0o755)
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return [output / member["name"] for member in members]


def _copy_adapter(source: Path, base_model: str, target: Path) -> None:
    target.mkdir()
    shutil.copyfile(source / WEIGHTS_FILE, target / WEIGHTS_FILE)
    config = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base_model
    (target / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_merged(source: Path, base_model: str, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base_model, dtype="auto")
    embeddings = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, factors in read_peft(source).weights.modules.items():
            weight = model.get_parameter(f"{name}.weight")
            if weight is embeddings:
                raise ExportError(f"{name} shares its weight with the input embeddings, so it can't be merged alone")
            # In float32 and rounded once; PEFT would round the update before it adds it.
            update = factors.scaling * factors.b.float() @ factors.a.float()
            weight.copy_(weight.float() + update)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(base_model).save_pretrained(target)


def _serve_script(base_model: str, folder: Path, members: Sequence[Record]) -> str:
    ranks = [json.loads((folder / m["name"] / CONFIG_FILE).read_text(encoding="utf-8"))["r"] for m in members]
    rank = engine_rank(max(ranks))
    modules = " ".join(f'{shlex.quote(m["name"])}="$here"/{shlex.quote(m["name"])}' for m in members)
    # One slot more than adapters: vLLM's CPU operators take the last slot for requests without an adapter. The module
    # is what `vllm serve` runs; that command itself asks for a distribution named vllm, and the CPU build has another.
    return (
        "#!/usr/bin/env bash\n"
        "# The base and its adapters; a request chooses by its model name. Arguments go to vLLM's server.\n"
        "set -euo pipefail\n"
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        f"exec python -m vllm.entrypoints.openai.api_server --model {shlex.quote(base_model)} "
        f"--enable-lora --max-loras {len(members) + 1} "
        f'--max-lora-rank {rank} --lora-modules {modules} "$@"\n'
    )


def model_card(checkpoint: Checkpoint, member: Record, form: str) -> str:
    """Markdown with the metadata that model hubs read: origin, lineage, and what was measured at the checkpoint."""
    lineage: dict[str, Any] = member["lineage"]
    parents = ", ".join(
        f"{name} (version {version})"
        for name, version in zip(lineage["parents"], lineage["parent_versions"], strict=True)
    )
    measured = {name: checkpoint.metric(member, name) for name in _CARD_METRICS}
    rows = "".join(f"| {name} | {value:.4g} |\n" for name, value in measured.items() if value is not None)
    library = "transformers" if form == "merged" else "peft"
    table = f"| metric | step {checkpoint.step} |\n|---|---|\n{rows}" if rows else "None was measured on this member.\n"
    return f"""---
library_name: {library}
base_model: {json.dumps(checkpoint.base_model)}
tags: [lora, self-play, population]
---

# {member["name"]}

A {member["role"]} of a self-play population, {"merged into" if form == "merged" else "an adapter of"} \
`{checkpoint.base_model}`, from step {checkpoint.step}.

| | |
|---|---|
| seat | {member["seat"]}, generation {member["generation"]} |
| born | after step {member["birth_step"]} |
| version of the weights | {member["version"]} |
| operator | {lineage["operator"]} |
| parents | {parents or "none: a founder"} |
| operator's parameters | `{json.dumps(lineage["params"])}`, seed {lineage["seed"]} |

## Metrics of training

{table}"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verl_populora.export", description="Write members of a run for peft, transformers or vLLM."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--member", default="best", help="best, all, or a member's name (default: best)")
    parser.add_argument("--role", choices=[role.value for role in Role], help="whose best (default: student), or all")
    parser.add_argument("--format", choices=FORMATS, default="peft")
    parser.add_argument("--step", type=int, help="checkpoint (default: the last)")
    parser.add_argument("--base", help="the base model, where it is not at the run's path any more")
    parser.add_argument("--output", type=Path, help="default: RUN/export/step_<n>-<member>-<format>")
    options = parser.parse_args(argv)
    try:
        checkpoint = read_checkpoint(options.run, options.step)
        if options.base:
            checkpoint = Checkpoint(
                checkpoint.folder, checkpoint.step, options.base, checkpoint.members, checkpoint.metrics
            )
        members = choose(checkpoint, options.member, options.role)
        label = members[0]["name"] if options.member == "best" else options.member
        output = options.output or options.run / "export" / f"step_{checkpoint.step}-{label}-{options.format}"
        folders = export(checkpoint, members, options.format, output)
    except (ExportError, RunDirError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for member, folder in zip(members, folders, strict=True):
        fitness = checkpoint.metric(member, "fitness")
        print(f"{folder}  ({member['role']}{'' if fitness is None else f', fitness {fitness:.4g}'})")
    if options.format == "vllm":
        print(f"serve with: bash {output / 'serve.sh'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
