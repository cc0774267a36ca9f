"""Episodes with scripted members: text is given, everything behind it (parsing, sandbox, rewards) is real."""

import asyncio
from collections import defaultdict
from collections.abc import Collection

import pytest

from azr_overrides.episode import Episode, EpisodePlan, Generation, Player, PromptTooLong, Rules
from azr_overrides.rewards.attempts import counted_accuracy, student_reward
from azr_overrides.rewards.teacher import FailureRateReward
from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.tasks.guessing import GuessRule
from azr_overrides.tasks.parsing import ParseOptions
from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import Task, TaskKind
from azr_overrides.tasks.verification import Verifier

NO_GUESSING = GuessRule()
TEACHER, STUDENT, OTHER = Player("teacher1", 1), Player("student1", 2), Player("student2", 3)


def answer(text: str) -> str:
    return f"<think>\n</think>\n<answer>\n{text}\n</answer>"


def proposal(body: str = "return x * 2", value: str = "3") -> str:
    return answer(f"```python\ndef f(x):\n    {body}\n```\n```input\n{value}\n```")


class Script:
    """A policy that says the next line of each member's script; a line may be an exception to raise."""

    def __init__(self, **lines):
        names = {1: "teacher", 2: "student", 3: "other"}
        self.lines = {adapter_id: list(lines.get(name, [])) for adapter_id, name in names.items()}
        self.seeds = defaultdict(list)
        self.order = []

    async def __call__(self, adapter_id, messages, seed, max_prompt=None):
        self.seeds[adapter_id].append(seed)
        line = self.lines[adapter_id].pop(0)
        self.order.append(adapter_id)
        if isinstance(line, Exception):
            raise line
        return Generation(line, tokens=len(line), version=0, sample=object())


def run(policy, *, known: Collection[str] = frozenset(), duplicate=-1.0, guessing=NO_GUESSING, **changes):
    plan = EpisodePlan(
        **{
            "episode": "s1e0",
            "step": 1,
            "seed": 7,
            "kind": TaskKind.CODE_O,
            "students": (STUDENT,),
            "attempts": 2,
            "teacher": TEACHER,
            "proposals": 1,
            **changes,
        }
    )

    async def go():
        async with Sandbox(SandboxConfig(cpu_s=2, wall_s=2)) as sandbox:
            rules = Rules(
                prompts=PromptSet.load("builtin"),
                parse=ParseOptions(),
                verifier=Verifier(sandbox),
                proposer_reward=FailureRateReward(),
                asking={},
                content_max_length=4096,
                duplicate_task_reward=duplicate,
                attempt_reward=student_reward,
                counted_accuracy=counted_accuracy,
                guessing=guessing,
            )
            return await Episode(plan, rules, policy, known).run()

    return asyncio.run(go())


def rewards(result, part):
    return [row.reward for row in result.rows if row.group.part == part]


def test_the_teacher_earns_what_its_student_fails():
    right, wrong = answer("```output\n6\n```"), answer("```output\n7\n```")
    result = run(Script(teacher=[proposal()], student=[right, wrong]))
    assert rewards(result, "propose") == [0.5]
    assert rewards(result, "solve") == [1.0, -0.5]
    (record,) = result.records
    assert record["outputs"] == ["6"] and record["solve_rate"] == 0.5 and record["reward"] == 0.5
    assert [a["outcome"] for a in record["attempts"]] == ["correct", "wrong"]
    assert [row.group.adapter_id for row in result.rows] == [1, 2, 2]


def test_a_malformed_attempt_costs_more_than_a_wrong_one():
    result = run(Script(teacher=[proposal()], student=["6", answer("```output\n6\n```")]))
    assert rewards(result, "solve") == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("no answer at all", "no_answer"),
        (proposal("return 1 / 0"), "exception"),
        (proposal("return id(x)"), "banned"),
        (proposal("return lambda: x"), "bad_value"),
    ],
)
def test_an_invalid_proposal_costs_one_and_is_not_asked(completion, reason):
    result = run(Script(teacher=[completion]))
    assert rewards(result, "propose") == [-1.0]
    assert (result.records[0]["valid"], result.records[0]["reason"]) == (False, reason)


def test_a_task_that_nobody_solves_earns_nothing():
    wrong = answer("```output\n7\n```")
    assert rewards(run(Script(teacher=[proposal()], student=[wrong, wrong])), "propose") == [0.0]


def test_a_known_task_is_a_duplicate_and_is_not_asked():
    first = run(Script(teacher=[proposal()], student=[answer("```output\n6\n```")] * 2))
    known = {first.records[0]["task_id"]}
    again = run(Script(teacher=[proposal("return  x*2  # other spelling")]), known=known)
    assert again.records[0]["reason"] == "duplicate"
    assert rewards(again, "propose") == [-1.0]


def test_a_lost_attempt_loses_only_itself():
    right = answer("```output\n6\n```")
    result = run(Script(teacher=[proposal()], student=[RuntimeError("engine"), right]))
    assert rewards(result, "solve") == [1.0]
    assert rewards(result, "propose") == [0.0]  # solved by every attempt that was judged
    assert result.drops == {"attempt": 1}


def test_a_lost_proposal_loses_only_itself():
    right = answer("```output\n6\n```")
    result = run(Script(teacher=[RuntimeError("engine"), proposal()], student=[right, right]), proposals=2)
    assert len(rewards(result, "propose")) == 1
    assert result.drops == {"proposal": 1}


def test_a_proposal_without_any_judged_attempt_is_not_charged_to_the_teacher():
    result = run(Script(teacher=[proposal()], student=[RuntimeError("a"), RuntimeError("b")]))
    assert result.rows == []
    assert result.drops == {"attempt": 2, "unrewarded_proposal": 1}
    assert result.records[0]["reward"] is None


def test_a_task_that_does_not_fit_the_students_prompt_is_invalid():
    result = run(Script(teacher=[proposal()], student=[PromptTooLong("900 tokens")] * 2))
    assert result.records[0]["reason"] == "too_long"
    assert rewards(result, "propose") == [-1.0]


def test_attempts_that_only_measure_are_not_trained_and_need_no_format():
    result = run(Script(teacher=[proposal()], student=["<answer>6", "7"]), train_attempts=False)
    assert rewards(result, "solve") == []
    assert rewards(result, "propose") == [0.5]


def test_a_given_task_is_only_solved():
    task = Task("id", TaskKind.CODE_O, "def f(x):\n    return x", ("1",), ("1",))
    result = run(Script(student=[answer("```output\n1\n```")]), task=task, teacher=None, attempts=1)
    assert rewards(result, "solve") == [1.0]
    assert result.records[0]["teacher"] is None


def test_induction_proposals_take_their_program_from_the_reference():
    reference = Task("id", TaskKind.CODE_O, "def f(x):\n    return x + 1", ("1",), ("2",))
    inputs = "\n".join(f"```input\n{value}\n```" for value in range(10))
    solution = answer("```python\ndef f(x):\n    return x + 1\n```")
    cheat = answer("```python\ndef f(x):\n    return [1, 2, 3, 4, 5][x]\n```")
    result = run(
        Script(teacher=[answer(f"{inputs}\n```message\nadd\n```")], student=[solution, cheat]),
        kind=TaskKind.CODE_F,
        references=(reference,),
    )
    (record,) = result.records
    assert record["program"] == reference.program
    assert rewards(result, "solve") == [1.0, -0.5]


def test_seeds_differ_between_completions_and_repeat_between_runs():
    right = answer("```output\n6\n```")
    first, second = (Script(teacher=[proposal()], student=[right, right]) for _ in range(2))
    run(first)
    run(second)
    assert first.seeds == second.seeds
    assert len({*first.seeds[1], *first.seeds[2]}) == 3


def test_a_verified_task_is_solved_while_another_proposal_is_still_being_written():
    right = answer("```output\n6\n```")
    finished = asyncio.Event()

    class Slow(Script):
        async def __call__(self, adapter_id, messages, seed, max_prompt=None):
            slow = adapter_id == 1 and len(self.lines[1]) == 1
            generation = await super().__call__(adapter_id, messages, seed, max_prompt)
            if slow:
                await finished.wait()  # the second proposal ends only after the first one's attempts
            elif adapter_id == 2 and len(self.lines[2]) == 2:
                finished.set()
            return generation

    result = run(Slow(teacher=[proposal(), proposal("return x * 2 + 0")], student=[right] * 4), proposals=2)
    assert len(rewards(result, "solve")) == 4


def test_several_students_try_the_same_task_and_are_told_apart():
    right, wrong = answer("```output\n6\n```"), answer("```output\n7\n```")
    policy = Script(teacher=[proposal()], student=[right, wrong], other=[wrong, wrong])
    result = run(policy, students=(STUDENT, OTHER))
    assert rewards(result, "propose") == [0.75]  # one of four attempts solved it
    solved = [row for row in result.rows if row.group.part == "solve"]
    assert [(row.group.adapter_id, row.reward) for row in solved] == [(2, 1.0), (2, -0.5), (3, -0.5), (3, -0.5)]
    assert len({row.group.uid for row in solved}) == 2
    (record,) = result.records
    assert record["student"] == "student1, student2"
    assert [attempt["student"] for attempt in record["attempts"]] == ["student1"] * 2 + ["student2"] * 2
    assert len({*policy.seeds[2], *policy.seeds[3]}) == 4


def test_a_past_students_attempts_reward_the_teacher_and_train_nobody():
    right, wrong = answer("```output\n6\n```"), answer("```output\n7\n```")
    past = Player("student1", 3, learns=False)
    result = run(Script(teacher=[proposal()], other=[right, wrong]), students=(past,))
    assert rewards(result, "propose") == [0.5] and rewards(result, "solve") == []
    assert [attempt["trained"] for attempt in result.records[0]["attempts"]] == [False, False]
    assert not result.drops
