"""How many proposals and attempts a step holds, so that populations and the baseline can be compared.

With ``B = data.train_batch_size``, ``K`` task kinds and ``n = azr.reward.n_samples``, one step of the single agent
generates ``P = B K`` proposals, ``n`` attempts at each of them to estimate its reward, and ``P`` attempts at tasks from
the buffers: ``G = P (1 + n) + P`` samples, all by one adapter.

A population of ``T`` teachers and ``M`` students writes ``p`` proposals a teacher, and ``s`` students make ``a``
attempts each at every one: ``T p (1 + s a)`` samples. ``budget=per_adapter`` sets this to ``G (T + M)``, so that an
adapter generates as much as the baseline's does, on average over the roles; ``budget=total`` sets it to ``G``. Every
adapter makes one optimiser step a step in either case. Samples of invalid proposals need no attempts, so the budgets
are upper bounds; what was really generated and trained is in the metrics.
"""

from dataclasses import dataclass

from omegaconf import DictConfig

BUDGETS = ("per_adapter", "total")


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Counts of one step."""

    proposals_per_teacher: int
    proposals_per_prompt: int  # the group of one baseline
    attempts: int  # of each student at each valid task
    solver_tasks: int  # tasks from the buffers, single agent only; otherwise 0

    @property
    def prompts_per_teacher(self) -> int:
        return self.proposals_per_teacher // self.proposals_per_prompt


def step_sizes(config: DictConfig) -> StepSizes:
    """Counts that the configuration asks for.

    Raises:
        ValueError: a count is impossible; the message names the key to change.
    """
    population, batch = config.population, int(config.data.train_batch_size)
    kinds, samples = len(config.azr.problem_types), int(config.azr.reward.n_samples)
    for key, value in (("data.train_batch_size", batch), ("azr.reward.n_samples", samples)):
        if value < 1:
            raise ValueError(f"{key} must be at least 1, not {value}")
    if kinds == 0:
        raise ValueError("azr.problem_types is empty; name at least one of code_o, code_i, code_f, code_e")
    if population.budget not in BUDGETS:
        raise ValueError(f"population.budget is {population.budget!r}; choose one of {', '.join(BUDGETS)}")
    proposals = batch * kinds
    teachers, students = int(population.teachers), int(population.students)
    if teachers == 0:
        per_kind = config.azr.data_selection_strategy.data_len or batch
        return StepSizes(proposals, 1, samples, solver_tasks=int(per_kind) * kinds)
    attempts = samples if population.attempts is None else int(population.attempts)
    if attempts < 1:
        raise ValueError(f"population.attempts must be at least 1, not {attempts}")
    opponents = int(population.students_per_task)
    if not 1 <= opponents <= students:
        raise ValueError(
            f"population.students_per_task is {opponents}, but a task goes to 1 to {students} different students"
        )
    if population.proposals_per_teacher is None:
        generated = proposals * (1 + samples) + proposals
        if population.budget == "per_adapter":
            generated *= teachers + students
        wanted = generated / (teachers * (1 + opponents * attempts))
    else:
        wanted = float(population.proposals_per_teacher)
    group = int(population.proposals_per_prompt)
    if group < 2:
        raise ValueError(
            f"population.proposals_per_prompt is {group}, but a group needs two proposals to have a baseline"
        )
    if wanted < 2:
        raise ValueError(
            f"each teacher would write {wanted:.2f} proposals a step, fewer than the two that a baseline needs; raise "
            "data.train_batch_size or population.proposals_per_teacher, or use population.budget=per_adapter"
        )
    group = min(group, int(wanted))
    return StepSizes(group * max(1, round(wanted / group)), group, attempts, solver_tasks=0)
