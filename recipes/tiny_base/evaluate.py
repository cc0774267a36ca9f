"""Measure a checkpoint: what share of its proposals is valid, and what share of tasks it solves by length.

    python -m recipes.tiny_base.evaluate recipes/tiny_base/model

Completions are sampled at temperature 1 in this process; prompts, parsing, verification and the sandbox are
those of a training run. Solving is measured on freshly generated held-out programs (another seed than
``heldout.jsonl``) and on the model's own proposals. Prints one JSON object; ``--table`` prints Markdown.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.tasks.parsing import ParseOptions, completion_text, format_ok, parse_answer, parse_proposal
from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import Outcome, Rejection, Task, TaskKind, Verdict
from azr_overrides.tasks.verification import Verifier
from recipes.tiny_base.documents import PROMPTS_FILE
from recipes.tiny_base.generator import statement_count
from recipes.tiny_base.heldout import Row, make_rows
from recipes.tiny_base.sampler import Sampler
from recipes.tiny_base.seeds import io_rows

NUM_INPUTS = 4
MAX_PROPOSAL_TOKENS = 200
MAX_ANSWER_TOKENS = 320
BATCH = 384
MEASURED_SEED = 99  # of the held-out programs measured here


@dataclass(frozen=True, slots=True)
class Proposal:
    """A sampled proposal: the completion with its opening tag, the reference shown, and what became of it."""

    completion: str
    reference: Task | None
    result: Task | Rejection


class Bench:
    """A model with the prompts, the parser and the verifier of a training run.

    Args:
        batch: completions sampled together.
    """

    def __init__(self, sampler: Sampler, verifier: Verifier, batch: int = BATCH):
        self.sampler = sampler
        self.batch = batch
        self.prompts = PromptSet.load(str(PROMPTS_FILE))
        self.options = ParseOptions(num_inputs=NUM_INPUTS)
        self._verifier = verifier

    async def propose(self, kind: TaskKind, references: Sequence[Task | None], count: int) -> list[Proposal]:
        """``count`` proposals for each reference, verified; None asks without a reference."""
        prompts = [
            self.sampler.prompt(self.prompts.proposer(kind, [reference] if reference else [], num_inputs=NUM_INPUTS))
            for reference in references
        ]
        proposals = []
        for reference, prompt, responses in self._sample(references, prompts, count, MAX_PROPOSAL_TOKENS):
            completions = [completion_text(prompt, response) for response in responses]
            results = await asyncio.gather(*(self._verified(kind, text, reference) for text in completions))
            proposals += map(Proposal, completions, repeat(reference), results)
        return proposals

    async def _verified(self, kind: TaskKind, completion: str, reference: Task | None) -> Task | Rejection:
        candidate = parse_proposal(kind, completion, self.options, reference=reference)
        if isinstance(candidate, Rejection):
            return candidate
        return await self._verifier.validate(candidate)

    async def solve(self, tasks: Sequence[Task], count: int, temperature: float = 1.0) -> list[list[Verdict]]:
        """``count`` judged attempts at each task."""
        prompts = [self.sampler.prompt(self.prompts.solver(task)) for task in tasks]
        verdicts = []
        for task, prompt, responses in self._sample(tasks, prompts, count, MAX_ANSWER_TOKENS, temperature):
            answers = [
                parse_answer(task.kind, completion_text(prompt, response), self.options) for response in responses
            ]
            verdicts.append(list(await asyncio.gather(*(self._verifier.judge(task, answer) for answer in answers))))
        return verdicts

    def _sample(self, items, prompts: Sequence[str], count: int, max_tokens: int, temperature: float = 1.0):
        """(item, prompt, responses) in order; sampled in batches."""
        size = max(1, self.batch // count)
        for first in range(0, len(prompts), size):
            batch = prompts[first : first + size]
            responses = self.sampler.sample(batch, count, max_tokens, temperature)
            yield from zip(items[first : first + size], batch, responses, strict=True)


def proposal_rates(proposals: Sequence[Proposal]) -> dict[str, Any]:
    """Shares among the proposals, and what the valid ones look like."""
    valid = [p.result for p in proposals if isinstance(p.result, Task)]
    reasons = Counter(str(p.result.reason) for p in proposals if isinstance(p.result, Rejection))
    lengths = [statement_count(task.program) for task in valid]
    rates: dict[str, Any] = {
        "proposals": len(proposals),
        "well_formed": fmean(format_ok(p.completion, "answer") for p in proposals),
        "valid": len(valid) / len(proposals),
        "invalid": dict(reasons),
        "distinct_tasks": len({task.task_id for task in valid}) / max(1, len(valid)),
        "distinct_programs": len({task.program for task in valid}) / max(1, len(valid)),
        "statements": fmean(lengths) if lengths else 0.0,
        "statements_histogram": dict(sorted(Counter(lengths).items())),
    }
    referred = [(p.reference, p.result) for p in proposals if p.reference and isinstance(p.result, Task)]
    if referred:
        rates["same_program_as_reference"] = fmean(r.program == task.program for r, task in referred)
        rates["statements_of_references"] = fmean(statement_count(r.program) for r, _ in referred)
    return rates


def input_rates(proposals: Sequence[Proposal]) -> dict[str, Any]:
    """Shares among proposals of inputs (code_f)."""
    rates = proposal_rates(proposals)
    valid = [p.result for p in proposals if isinstance(p.result, Task)]
    return {key: rates[key] for key in ("proposals", "well_formed", "valid", "invalid", "distinct_tasks")} | {
        "distinct_inputs": fmean(len(set(task.inputs)) / len(task.inputs) for task in valid),
        "varied_outputs": fmean(len(set(task.outputs)) > 1 for task in valid),
    }


def solving_rates(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """Mean solve rate, share of tasks solved sometimes, and of well-formed attempts.

    An attempt at code_f counts as solved when all hidden pairs are right.
    """
    solved = [[verdict.outcome is Outcome.CORRECT for verdict in attempts] for attempts in verdicts]
    return {
        "tasks": len(solved),
        "solve_rate": fmean(map(fmean, solved)) if solved else 0.0,
        "mixed": fmean(0 < sum(attempts) < len(attempts) for attempts in solved) if solved else 0.0,
        "well_formed": fmean(v.outcome is not Outcome.MALFORMED for attempts in verdicts for v in attempts)
        if solved
        else 0.0,
    }


async def measure(folder: Path, proposals: int, tasks: int, samples: int, seed: int) -> dict[str, Any]:
    """All rates of the checkpoint in ``folder``."""
    async with Sandbox(SandboxConfig(cpu_s=2, wall_s=2)) as sandbox:
        bench = Bench(Sampler(folder, seed), Verifier(sandbox))
        report: dict[str, Any] = {"propose": {}, "held_out": {}, "own": {}}
        references = [
            Row(TaskKind.CODE_O, row["snippet"], (row["input"],), (row["output"],)).task() for row in io_rows()
        ]
        free = await bench.propose(TaskKind.CODE_O, [None], proposals)
        each = max(1, proposals // len(references))
        referred = await bench.propose(TaskKind.CODE_O, references, each)
        inputs = await bench.propose(TaskKind.CODE_F, references, each)
        report["propose"] = {
            "without reference": proposal_rates(free),
            "with reference": proposal_rates(referred),
            "inputs": input_rates(inputs),
        }
        cells: dict[tuple[TaskKind, int], list[Task]] = {}
        for row in make_rows(MEASURED_SEED, tasks):
            cells.setdefault((row.kind, statement_count(row.program)), []).append(row.task())
        for (kind, statements), chosen in cells.items():
            rates = solving_rates(await bench.solve(chosen, samples))
            report["held_out"].setdefault(str(kind), {})[statements] = rates
        for kind, source in ((TaskKind.CODE_O, free), (TaskKind.CODE_I, free), (TaskKind.CODE_F, inputs)):
            own = [replace(p.result, kind=kind) for p in source if isinstance(p.result, Task)][: 2 * tasks]
            report["own"][str(kind)] = solving_rates(await bench.solve(own, samples))
    return report


def as_table(report: dict[str, Any]) -> str:
    """The report as Markdown tables."""
    rows = ["| proposals | well-formed | valid | distinct tasks |", "|---|---|---|---|"]
    rows += [
        f"| {name} ({rates['proposals']}) | {rates['well_formed']:.3f} | {rates['valid']:.3f} "
        f"| {rates['distinct_tasks']:.3f} |"
        for name, rates in report["propose"].items()
    ]
    lengths = sorted({length for cells in report["held_out"].values() for length in cells})
    rows += ["", f"| statements | {' | '.join(map(str, lengths))} | own |", "|---" * (len(lengths) + 2) + "|"]
    for measure in ("solve_rate", "mixed"):
        for kind, cells in report["held_out"].items():
            shown = [f"{cells[length][measure]:.2f}" if length in cells else "-" for length in lengths]
            own = report["own"][kind][measure]
            rows.append(f"| {kind} {measure} | {' | '.join(shown)} | {own:.2f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model folder")
    parser.add_argument("--proposals", type=int, default=256)
    parser.add_argument("--tasks", type=int, default=48, help="held-out tasks for each kind and length")
    parser.add_argument("--samples", type=int, default=4, help="attempts at each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print Markdown tables instead of JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = asyncio.run(
        measure(arguments.folder, arguments.proposals, arguments.tasks, arguments.samples, arguments.seed)
    )
    print(as_table(report) if arguments.table else json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
