"""AZR's proposer reward for a single agent: learnability, and intrinsic rewards on top of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from azr_overrides.rewards.intrinsic import (
    cognitive_complexity,
    halstead_mix,
    mean_edit_distance,
    surprise,
)
from azr_overrides.rewards.teacher import INVALID, refuse_unverified, solve_rate
from azr_overrides.tasks.type_counters import Counts, CountsByLabel
from azr_overrides.tasks.types import Rejection, RejectReason, Task, TaskKind

NOT_LEARNABLE = -0.5  # a valid task at an extreme solve rate, in AZR's code
CONVERSIONS = ("one_minus", "inverse")
COMBINATIONS = ("sum", "multiply", "sum_multiply", "multiply_sum")
PROGRAM_FILTERS = ("all", "non_one", "non_extremes")
_COUNTED_RESULT = {TaskKind.CODE_I: "input", TaskKind.CODE_O: "output", TaskKind.CODE_E: "error"}
_NO_COUNTS: Mapping[str, Counts] = {"input": {}, "output": {}, "error": {}}


@dataclass(frozen=True, slots=True)
class Weight:
    """How one intrinsic measure becomes a reward: ``min(coef * value, limit)``."""

    enabled: bool = False
    coef: float = 0.0
    limit: float = 0.5
    hierarchical: bool = False  # answer diversity only

    @classmethod
    def from_config(cls, node) -> "Weight":
        return cls(node.enabled, node.coef, node.max, node.get("hierarchical", False))

    def apply(self, value: float) -> float:
        return min(self.coef * value, self.limit)


@dataclass(frozen=True, slots=True)
class ProposerRewardOptions:
    """Names follow ``azr.reward`` and its ``generation_reward_config``."""

    generation_accuracy_convertion: str = "one_minus"
    code_f_reward_type: str = "binary"
    format_reward: bool = True
    zero_for_extremes: bool = False  # as in AZR's paper: 0 instead of -0.5 when all or none solved the task
    intrinsic_combine_method: str = "sum"
    use_original_code_as_ref: bool = False
    complexity: Weight = field(default_factory=Weight)
    mean_edit_distance: Weight = field(default_factory=Weight)
    halstead: Weight = field(default_factory=Weight)
    answer_diversity: Weight = field(default_factory=Weight)
    f_input_answer_diversity: Weight = field(default_factory=Weight)
    f_output_answer_diversity: Weight = field(default_factory=Weight)

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("generation_accuracy_convertion", self.generation_accuracy_convertion, CONVERSIONS),
            ("intrinsic_combine_method", self.intrinsic_combine_method, COMBINATIONS),
        ):
            if value not in choices:
                key = f"azr.reward.generation_reward_config.{name}"
                raise ValueError(f"{key} is {value!r}; choose one of {', '.join(choices)}")

    @classmethod
    def from_config(cls, config) -> "ProposerRewardOptions":
        """From the composed configuration."""
        reward = config.azr.reward
        proposals = reward.generation_reward_config
        return cls(
            generation_accuracy_convertion=proposals.generation_accuracy_convertion,
            code_f_reward_type=reward.code_f_reward_type,
            format_reward=proposals.format_reward,
            zero_for_extremes=reward.zero_for_extremes,
            intrinsic_combine_method=proposals.intrinsic_combine_method,
            use_original_code_as_ref=proposals.use_original_code_as_ref,
            complexity=Weight.from_config(proposals.complexity_reward),
            mean_edit_distance=Weight.from_config(proposals.mean_edit_distance_reward),
            halstead=Weight.from_config(proposals.halstead_reward),
            answer_diversity=Weight.from_config(proposals.answer_diversity_reward),
            f_input_answer_diversity=Weight.from_config(proposals.f_input_answer_diversity_reward),
            f_output_answer_diversity=Weight.from_config(proposals.f_output_answer_diversity_reward),
        )


@dataclass(frozen=True, slots=True)
class ProposerScore:
    """A reward and where it comes from."""

    reward: float
    accuracy_term: float = 0.0  # learnability, 0 for an invalid proposal
    intrinsics: Mapping[str, float] = field(default_factory=dict)  # name -> reward, the enabled ones


def learnability(rate: float, conversion: str = "one_minus") -> float:
    """AZR's accuracy term from a solve rate in [0, 1].

    ``one_minus``: 1 - rate, but 0 if nobody solved the task. ``inverse``: 1 - rate.
    """
    return 0.0 if conversion == "one_minus" and rate == 0 else 1.0 - rate


def combine(accuracy_term: float, intrinsics: Sequence[float], method: str = "sum") -> float:
    """Learnability ``a`` and intrinsic rewards ``r_i`` as one reward; ``a`` alone without any ``r_i``.

    ``sum``: a + sum(r). ``multiply``: a prod(r). ``sum_multiply``: a + prod(r). ``multiply_sum``: a sum(r).
    """
    if not intrinsics:
        return accuracy_term
    gathered = math.prod(intrinsics) if method in ("multiply", "sum_multiply") else sum(intrinsics)
    return accuracy_term + gathered if method.startswith("sum") else accuracy_term * gathered


def passes_filter(rate: float, valid_program_filter: str = "all") -> bool:
    """Whether a valid task with this solve rate enters the buffer (``valid_program_filter``).

    ``all``; ``non_one``: rate < 1; ``non_extremes``: 0 < rate < 1. Raises ValueError for any other filter.
    """
    if valid_program_filter == "all":
        return True
    if valid_program_filter == "non_one":
        return rate < 1
    if valid_program_filter == "non_extremes":
        return 0 < rate < 1
    choices = ", ".join(PROGRAM_FILTERS)
    raise ValueError(f"valid_program_filter is {valid_program_filter!r}; choose one of {choices}")


@dataclass(frozen=True, slots=True)
class AzrProposerReward:
    """AZR's composite reward as a `ProposerReward`.

        -1                                        no valid task, or a malformed completion
        -0.5                                      learnability 0: nobody or everybody solved the task
        combine(learnability, intrinsic rewards)  otherwise

    ``zero_for_extremes`` makes the second case 0. A task that is too long for its solver counts as unsolved.

    Source: Absolute Zero (arXiv 2505.03335) and its code; ``counters`` are the counts before this proposal.
    """

    options: ProposerRewardOptions = field(default_factory=ProposerRewardOptions)
    counters: CountsByLabel = field(default_factory=lambda: _NO_COUNTS)

    def __call__(
        self,
        outcome: Task | Rejection,
        accuracies: Sequence[float],
        well_formed: bool,
        references: Sequence[Task] = (),
    ) -> float:
        return self.score(outcome, accuracies, well_formed, references).reward

    def with_counters(self, counters: CountsByLabel) -> "AzrProposerReward":
        """The same reward on newer type counts."""
        return replace(self, counters=counters)

    def score(
        self,
        outcome: Task | Rejection,
        accuracies: Sequence[float],
        well_formed: bool,
        references: Sequence[Task] = (),
    ) -> ProposerScore:
        """The reward with its parts; arguments and errors as in `ProposerReward`."""
        refuse_unverified(outcome)
        too_long = isinstance(outcome, Rejection) and outcome.reason is RejectReason.TOO_LONG
        if isinstance(outcome, Rejection) and not too_long:
            return ProposerScore(INVALID)
        rate = 0.0 if too_long else solve_rate(accuracies, self.options.code_f_reward_type)
        term = learnability(rate, self.options.generation_accuracy_convertion)
        if not well_formed and self.options.format_reward:
            return ProposerScore(INVALID, term)
        if term == 0:
            return ProposerScore(0.0 if self.options.zero_for_extremes else NOT_LEARNABLE)
        intrinsics = self._intrinsics(outcome, references) if isinstance(outcome, Task) else {}
        reward = combine(term, list(intrinsics.values()), self.options.intrinsic_combine_method)
        return ProposerScore(reward, term, intrinsics)

    def _intrinsics(self, task: Task, references: Sequence[Task]) -> dict[str, float]:
        """The enabled intrinsic rewards; code_f proposers write no program, so only values count."""
        options = self.options
        if task.kind is TaskKind.CODE_F:
            # AZR takes `hierarchical` of all diversity rewards from the same key.
            hierarchical = options.answer_diversity.hierarchical
            measures = {
                "input_answer_diversity": (
                    options.f_input_answer_diversity,
                    lambda: self._mean_surprise(task.inputs, "input", hierarchical),
                ),
                "output_answer_diversity": (
                    options.f_output_answer_diversity,
                    lambda: self._mean_surprise(task.outputs, "output", hierarchical),
                ),
            }
        else:
            program = self._own_program(task)
            answer = task.inputs[0] if task.kind is TaskKind.CODE_I else task.outputs[0]
            label, weight = _COUNTED_RESULT[task.kind], options.answer_diversity
            measures = {
                "complexity": (options.complexity, lambda: cognitive_complexity(program)),
                "mean_edit_distance": (
                    options.mean_edit_distance,
                    lambda: mean_edit_distance(program, [self._own_program(other) for other in references]),
                ),
                "halstead": (options.halstead, lambda: halstead_mix(program)),
                "answer_diversity": (
                    weight,
                    lambda: self._mean_surprise((answer,), label, weight.hierarchical),
                ),
            }
        return {name: weight.apply(measure()) for name, (weight, measure) in measures.items() if weight.enabled}

    def _own_program(self, task: Task) -> str:
        return task.original_program or task.program if self.options.use_original_code_as_ref else task.program

    def _mean_surprise(self, values: Sequence[str], label: str, hierarchical: bool) -> float:
        return sum(surprise(text, self.counters[label], hierarchical) for text in values) / len(values)
