"""Self-play between synthetic players, written as a run directory: for tests of what reads one.

Players are numbers (a student's skill, the difficulty a teacher aims at); all else is real: matchmaking and
ratings, programs with measured complexity and coverage, the writer of the run directory. The same seed gives
the same files, byte for byte.
"""

import math
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from azr_overrides.tasks.complexity import complexity
from azr_overrides.tasks.coverage import CoverageTracker
from verl_populora.detectors import detect, warning_metrics
from verl_populora.evolution.diversity import DiversityReport, PairDiversity
from verl_populora.members import Lineage, Member, Role
from verl_populora.rundir import RunWriter, member_record
from verl_populora.selfplay.matchmaking import PfspMatchmaker
from verl_populora.selfplay.ratings import MatchObservation, Rating, TrueSkillModel

INVALID_REASONS = ("no_answer", "syntax", "exception", "duplicate", "timeout")
KINDS = ("code_o", "code_i", "code_f")


@dataclass(frozen=True)
class Scenario:
    """What to simulate. ``collapse``: proposers drift to what is solved already."""

    teachers: int = 2
    students: int = 2
    steps: int = 40
    seed: int = 0
    collapse: bool = False
    proposals: int = 8  # a teacher and step
    attempts: int = 4  # a task
    evolve_every: int = 10

    @property
    def single(self) -> bool:
        return self.teachers == 0


class Simulator:
    def __init__(self, scenario: Scenario, path: Path) -> None:
        self.scenario = scenario
        self.rng = np.random.default_rng(scenario.seed)
        self.writer = RunWriter(path)
        self.model = TrueSkillModel()
        self.matchmaker = PfspMatchmaker()
        self.coverage = CoverageTracker()
        roles = [Role.TEACHER] * scenario.teachers + [Role.STUDENT] * scenario.students
        seats = [f"teacher{i + 1}" for i in range(scenario.teachers)]
        seats += [f"student{i + 1}" for i in range(scenario.students)]
        if scenario.single:
            roles, seats = [Role.AGENT], ["agent1"]
        self.members = {
            seat: Member(seat, role, number) for number, (seat, role) in enumerate(zip(seats, roles, strict=True), 1)
        }
        self.skill = dict.fromkeys(seats, 0.0)  # in logits, as is the difficulty
        self.aim = dict.fromkeys(seats, 0.0)  # mean difficulty of the tasks that a member writes
        self.ratings = dict.fromkeys(seats, self.model.initial())
        self.history: list[dict[str, float]] = []

    def run(self) -> None:
        scenario = self.scenario
        self.writer.config(
            {
                "population": {"teachers": scenario.teachers, "students": scenario.students},
                "seed": scenario.seed,
            }
        )
        info = {
            "base_model": "simulated",
            "seed": scenario.seed,
            "population": {"budget": "per_adapter"},
            "sandbox": {"level": "none"},
            "versions": {"simulator": "1"},
        }
        self.writer.run_info(info)
        for member in self.members.values():
            self.writer.birth(member_record(member))
        for step in range(1, scenario.steps + 1):
            self._step(step)
            if step % scenario.evolve_every == 0 and not scenario.single:
                self._evolve(step)

    def _step(self, step: int) -> None:
        pairs = self._pairs(step)
        records, matches = [], []
        for teacher, student, probability in pairs:
            played = [self._proposal(step, index, teacher, student) for index in range(self.scenario.proposals)]
            records += played
            matches.append(self._match(step, teacher, student, probability, played))
        valid = [record for record in records if record["valid"]]
        covered = self.coverage.add_batch([record["program"] for record in valid])
        metrics = self._metrics(step, records, valid)
        metrics |= {f"coverage/{name}": value for name, value in asdict(covered).items()}
        self.history.append(metrics)
        metrics |= warning_metrics(detect(self.history))
        self.writer.tasks(step, records)
        if not self.scenario.single:
            self.writer.matches(matches)
        self.writer.metrics(step, metrics)
        self._learn(records)

    def _pairs(self, step: int) -> list[tuple[str, str, float]]:
        if self.scenario.single:
            return [("agent1", "agent1", 1.0)]
        drawn = self.matchmaker.pair(
            self._seats(Role.TEACHER),
            self._seats(Role.STUDENT),
            lambda teacher, student: self.model.win_probability(self.ratings[student], self.ratings[teacher]),
            self.rng,
            step,
        )
        return [(match.teacher, match.student, match.probability) for match in drawn]

    def _proposal(self, step: int, index: int, teacher: str, student: str) -> dict:
        rng, kind = self.rng, KINDS[index % 3]
        record = {
            "step": step,
            "episode": f"{step}-{teacher}",
            "index": index,
            "kind": kind,
            "teacher": self.members[teacher].name,
            "student": self.members[student].name,
            "valid": bool(rng.random() < 0.85),
            "reason": None,
            "detail": "",
            "response_tokens": int(rng.integers(40, 80)),
            "format_ok": True,
        }
        if not record["valid"]:
            reason = INVALID_REASONS[int(rng.integers(len(INVALID_REASONS)))]
            return record | {
                "reason": reason,
                "detail": f"simulated {reason}",
                "program": "",
                "reward": -1.0,
                "attempts": [],
            }
        difficulty = self.aim[teacher] + rng.normal(0, 0.8)
        program = make_program(rng, statements=max(1, round(3 + 1.5 * difficulty)))
        chance = 1 / (1 + math.exp(difficulty - self.skill[student]))
        attempts = [self._attempt(student, rng.random() < chance) for _ in range(self.scenario.attempts)]
        solve_rate = sum(attempt["accuracy"] for attempt in attempts) / len(attempts)
        return record | {
            "task_id": f"{step}-{teacher}-{index}",
            "program": program,
            "inputs": ["3, [1, 2]"],
            "outputs": ["'<b>&amp;</b>'"],
            "message": "",
            "reward": 1 - solve_rate if solve_rate else 0.0,
            "solve_rate": solve_rate,
            "complexity": asdict(complexity(program)),
            "completion": f"```python\n{program}\n```",
            "attempts": attempts,
        }

    def _attempt(self, student: str, correct: bool) -> dict:
        return {
            "student": self.members[student].name,
            "answer": "'<b>&amp;</b>'" if correct else "[1]",
            "outcome": "correct" if correct else "wrong",
            "accuracy": float(correct),
            "reward": 1.0 if correct else -0.5,
            "response_tokens": int(self.rng.integers(60, 120)),
            "completion": "<think>\n...",
        }

    def _match(self, step: int, teacher: str, student: str, probability: float, played: list[dict]) -> dict:
        valid = [record for record in played if record["valid"]]
        solve_rate = mean(record["solve_rate"] for record in valid) if valid else None
        observed = MatchObservation(solve_rate, len(valid), len(valid) * self.scenario.attempts)
        update = self.model.update(self.ratings[teacher], self.ratings[student], observed)
        if not self.scenario.single:
            self.ratings[teacher], self.ratings[student] = update.teacher, update.student
        return {
            "step": step,
            "teacher": self.members[teacher].name,
            "student": self.members[student].name,
            "probability": probability,
            "expected": update.expected,
            "tasks": len(played),
            "valid": len(valid),
            "solve_rate": solve_rate,
            "result": update.result.value,
            "teacher_rating": [update.teacher.mu, update.teacher.sigma],
            "student_rating": [update.student.mu, update.student.sigma],
        }

    def _metrics(self, step: int, records: list[dict], valid: list[dict]) -> dict[str, float]:
        rates = [record["solve_rate"] for record in valid]
        metrics: dict[str, float] = {
            "tasks/proposed": len(records),
            "tasks/valid": len(valid),
            "tasks/attempts": sum(len(record["attempts"]) for record in records),
            "tasks/valid_rate": len(valid) / len(records),
            "tasks/solve_rate": mean(rates),
            "tasks/unsolved_rate": mean(rate == 0 for rate in rates),
            "tasks/mixed_rate": mean(0 < rate < 1 for rate in rates),
            "tasks/solved_rate": mean(rate == 1 for rate in rates),
            "time/rollout": 3 + float(self.rng.random()),
            "time/update": 1 + float(self.rng.random()) / 4,
            "time/sync": 0.1,
            "sandbox/programs_per_s": 400 + float(self.rng.random()) * 50,
        }
        metrics["time/step"] = metrics["time/rollout"] + metrics["time/update"] + metrics["time/sync"] + 0.2
        for kind in KINDS:
            rates_of_kind = [record["solve_rate"] for record in valid if record["kind"] == kind]
            if rates_of_kind:
                metrics[f"tasks/{kind}/solve_rate"] = mean(rates_of_kind)
        for reason in INVALID_REASONS:
            metrics[f"invalid/{reason}"] = sum(record["reason"] == reason for record in records)
        for name in ("ast_depth", "cyclomatic", "lines", "variables"):
            metrics[f"complexity/{name}"] = mean(record["complexity"][name] for record in valid)
        for seat, member in self.members.items():
            metrics |= self._member_metrics(seat, member, records)
        metrics["role/teacher/reward"] = mean(record["reward"] for record in records)
        metrics["role/student/reward"] = mean(attempt["reward"] for record in records for attempt in record["attempts"])
        return {"step": step, **metrics}

    def _member_metrics(self, seat: str, member: Member, records: list[dict]) -> dict[str, float]:
        written = [record for record in records if record["teacher"] == member.name]
        tried = [attempt for record in records for attempt in record["attempts"] if attempt["student"] == member.name]
        samples = [*written, *tried]
        metrics: dict[str, float] = {
            f"member/{seat}/reward": mean(sample["reward"] for sample in samples),
            f"member/{seat}/samples": len(samples),
            f"member/{seat}/tokens": sum(sample["response_tokens"] for sample in samples),
            f"member/{seat}/response_length": mean(sample["response_tokens"] for sample in samples),
            f"member/{seat}/entropy": 0.8 + float(self.rng.random()) / 10,
            f"member/{seat}/grad_norm": float(self.rng.random()),
            f"member/{seat}/version": member.version,
            f"member/{seat}/skipped_updates": 0,
        }
        if not self.scenario.single:
            rating = self.ratings[seat]
            metrics[f"member/{seat}/mu"] = rating.mu
            metrics[f"member/{seat}/sigma"] = rating.sigma
            metrics[f"member/{seat}/fitness"] = self.model.fitness(rating)
        if written:
            metrics[f"teacher/{seat}/valid_rate"] = mean(record["valid"] for record in written)
            solved = [record["solve_rate"] for record in written if record["valid"]]
            if solved:
                metrics[f"teacher/{seat}/solve_rate"] = mean(solved)
        if tried:
            metrics[f"student/{seat}/solve_rate"] = mean(attempt["accuracy"] for attempt in tried)
        return metrics

    def _learn(self, records: list[dict]) -> None:
        for seat, member in self.members.items():
            self.members[seat] = replace(member, version=member.version + 1)
            taught = [
                record["solve_rate"] for record in records if record["valid"] and record["teacher"] == member.name
            ]
            if member.role is not Role.STUDENT and taught:
                target = 0.97 if self.scenario.collapse else 0.4
                self.aim[seat] = max(-2.0, self.aim[seat] + 0.3 * (mean(taught) - target))
            if member.role is not Role.TEACHER:
                self.skill[seat] += 0.03 + float(self.rng.normal(0, 0.05))

    def _evolve(self, step: int) -> None:
        fitness = {seat: self.model.fitness(rating) for seat, rating in self.ratings.items()}
        births = []
        for role in (Role.TEACHER, Role.STUDENT):
            ranked = sorted(self._seats(role), key=lambda seat: -fitness[seat])
            if len(ranked) < 2:
                continue
            operator, parents = ("dare", ranked[:2]) if len(ranked) > 2 else ("svd_mutation", ranked[:1])
            births.append(self._replace(ranked[-1], operator, parents, step))
        self.writer.evolution(
            {
                "step": step,
                "fitness": {self.members[seat].name: value for seat, value in fitness.items()},
                "births": births,
                "diversity": asdict(self._diversity()),
            }
        )

    def _diversity(self) -> DiversityReport:
        """Members as points on a line; teacher1 and student1 are too fresh to have an update."""
        seats = list(self.members)
        place = dict(zip(seats, np.cumsum(self.rng.random(len(seats))), strict=True))
        pairs = []
        for first, second in combinations(seats, 2):
            fresh = {first, second} == {"teacher1", "student1"}
            distance = math.inf if fresh else float(place[second] - place[first])
            pairs.append(PairDiversity(first, second, 0.5, distance, math.nan, math.nan))
        return DiversityReport(tuple(pairs), dict.fromkeys(seats, 1.0), 0.5, 0.1, False)

    def _replace(self, seat: str, operator: str, parents: list[str], step: int) -> dict:
        old = self.members[seat]
        lineage = Lineage(
            operator,
            tuple(self.members[parent].name for parent in parents),
            tuple(self.members[parent].version for parent in parents),
            {"strength": 0.1},
            seed=step,
        )
        child = replace(old, generation=old.generation + 1, birth_step=step, version=old.version + 1, lineage=lineage)
        self.members[seat] = child
        self.ratings[seat] = Rating(self.model.initial().mu, self.model.initial().sigma)
        self.skill[seat] = mean(self.skill[parent] for parent in parents)
        self.aim[seat] = mean(self.aim[parent] for parent in parents)
        self.writer.birth(member_record(child))
        return {"seat": seat, "replaced": old.name, **asdict(lineage)}

    def _seats(self, role: Role) -> list[str]:
        return [seat for seat, member in self.members.items() if member.role is role]


STATEMENTS = (
    "xs = sorted(xs)[:{n}]",
    "b = a * {n} + len(xs)",
    "xs.append(a % {n})",
    "a = max(a, {n})",
    "xs = [x + {n} for x in xs if x > a]",
    "a = sum(xs) // {n}",
    "xs = xs[::-1]",
    "a, b = xs.count({n}), a - {n}",
    "a ^= {n}",
    "xs = list(set(xs))",
)
BLOCKS = ("for x in xs:", "if a > {n}:", "while a < {n}:", "for i in range({n}):")


def make_program(rng: np.random.Generator, statements: int) -> str:
    """A valid program with ``statements`` statements or blocks."""
    lines, depth = ["def f(a, xs):"], 1
    for _ in range(statements):
        opens = depth < 4 and rng.random() < 0.35
        template = str(rng.choice(BLOCKS if opens else STATEMENTS))
        lines.append("    " * depth + template.format(n=int(rng.integers(2, 9))))
        if opens:
            depth += 1
            lines.append("    " * depth + "a += 1")
        elif rng.random() < 0.4:
            depth = max(1, depth - 1)
    return "\n".join([*lines, "    return a, xs"])


def mean(values) -> float:
    values = list(values)
    return float(sum(values)) / len(values) if values else 0.0


def simulate(path: Path, **scenario) -> Path:
    """Write a whole run; see `Scenario` for the options."""
    Simulator(Scenario(**scenario), path).run()
    return path
