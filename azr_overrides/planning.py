"""What each step asks of the members: which kinds of tasks, with which references, against whom."""

from collections.abc import Mapping, Sequence

import numpy as np

from azr_overrides.buffers import TaskBuffers
from azr_overrides.episode import EpisodePlan, Player
from azr_overrides.sizes import StepSizes
from azr_overrides.tasks.composites import CompositeSchedule, helper_sources
from azr_overrides.tasks.types import TaskKind
from verl_populora.members import Guest, Member
from verl_populora.selfplay.matchmaking import Match


class Planner:
    """Makes a step's episodes; the random stream decides only about references and buffer tasks.

    Args:
        kinds: task kinds to propose, in turn.
        references: how many earlier tasks a proposer's prompt shows (code_f always shows one).
        composites: when proposals get helper functions that they have to call.
        solver_only_steps: first steps in which the single agent proposes nothing (``azr.pretrain_pred_steps``).
        seed: seed of the members' sampling.
    """

    def __init__(
        self,
        sizes: StepSizes,
        kinds: Sequence[TaskKind],
        references: int,
        composites: CompositeSchedule,
        solver_only_steps: int,
        buffers: TaskBuffers,
        rng: np.random.Generator,
        seed: int,
    ):
        self.sizes = sizes
        self.kinds = tuple(kinds)
        self.references = references
        self.composites = composites
        self.solver_only_steps = solver_only_steps
        self.buffers = buffers
        self.rng = rng
        self.seed = seed

    def population_step(
        self, step: int, matches: Sequence[Match], members: Mapping[str, Member | Guest]
    ) -> list[EpisodePlan]:
        """Episodes of every teacher: it writes for the students of its matches."""
        opponents: dict[str, list[Player]] = {}
        for match in matches:
            opponents.setdefault(match.teacher, []).append(_player(members[match.student]))
        plans = []
        for seat, students in opponents.items():
            teacher = _player(members[seat])
            for prompt in range(self.sizes.prompts_per_teacher):
                # Kinds take turns over prompts and steps, so that few prompts a step still cover all of them.
                kind = self.kinds[(step * self.sizes.prompts_per_teacher + prompt) % len(self.kinds)]
                plans.append(self._proposing(step, len(plans), kind, teacher, tuple(students), train_attempts=True))
        return plans

    def single_step(self, step: int, agent: Member) -> list[EpisodePlan]:
        """AZR's step for one agent: proposals whose attempts only measure them, and tasks from the buffers to solve.

        Attempts train on what earlier steps proposed, never on this step's proposals.
        """
        player = _player(agent)
        per_kind = self.sizes.proposals_per_teacher // len(self.kinds)
        plans: list[EpisodePlan] = []
        for kind in self.kinds if step > self.solver_only_steps else ():
            for _ in range(per_kind):
                plans.append(self._proposing(step, len(plans), kind, player, (player,), train_attempts=False))
        for kind in self.kinds:
            for task in self.buffers.solver_tasks(kind, self.sizes.solver_tasks // len(self.kinds), step, self.rng):
                plans.append(
                    EpisodePlan(
                        episode=_name(step, len(plans)),
                        step=step,
                        seed=self.seed,
                        kind=kind,
                        students=(player,),
                        attempts=1,
                        task=task,
                    )
                )
        return plans

    def _proposing(
        self,
        step: int,
        number: int,
        kind: TaskKind,
        teacher: Player,
        students: tuple[Player, ...],
        train_attempts: bool,
    ) -> EpisodePlan:
        references = self.buffers.references(kind, 1 if kind is TaskKind.CODE_F else self.references, self.rng)
        # A code_f proposer writes no program, so it has nothing to call helpers from.
        helpers = () if kind is TaskKind.CODE_F else self.composites.draw(step, references, self.rng)
        return EpisodePlan(
            episode=_name(step, number),
            step=step,
            seed=self.seed,
            kind=kind,
            students=students,
            attempts=self.sizes.attempts,
            teacher=teacher,
            proposals=self.sizes.proposals_per_prompt,
            references=tuple(references),
            composites=helper_sources(helpers),
            train_attempts=train_attempts,
        )


def _name(step: int, number: int) -> str:
    return f"s{step}e{number:04d}"


def _player(member: Member | Guest) -> Player:
    return Player(member.name, member.adapter_id, learns=isinstance(member, Member))
