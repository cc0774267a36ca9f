"""The population as the algorithm sees it: members, ratings, matches, generations. Knows no model and no framework."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from verl_populora.evolution.config import EvolutionConfig
from verl_populora.evolution.hall_of_fame import Laureate
from verl_populora.evolution.population import Birth, Evolution
from verl_populora.layout import PopulationLayout
from verl_populora.members import GUEST, Guest, Lineage, Member, Role
from verl_populora.selfplay.matchmaking import Match, make_matchmaker
from verl_populora.selfplay.ratings import MatchObservation, Rating, make_rating_model
from verl_populora.selfplay.selection import make_fitness

_GUEST_STREAM = 2  # the first two streams of a seed are those of matches and of evolution
_REWARDS_KEPT = 100  # steps; the longest window of a fitness by reward


@dataclass(frozen=True, slots=True)
class PopulationRules:
    """How pairs are made, rated and replaced."""

    matchmaking: str = "pfsp"
    matchmaking_params: Mapping[str, Any] | None = None
    rating: str = "trueskill"
    rating_params: Mapping[str, Any] | None = None
    fitness: str = "conservative_rating"
    fitness_params: Mapping[str, Any] | None = None
    students_per_task: int = 1  # matches of each teacher a step
    evolution: EvolutionConfig = EvolutionConfig(enabled=False)
    rank: int | None = None  # of the adapters; children get it whatever their parents have
    alpha: float | None = None


class Population:
    """State of one run; every random choice comes from streams derived from ``seed``.

    Args:
        layout: the seats; the single agent has one and plays no matches.
    """

    def __init__(self, layout: PopulationLayout, rules: PopulationRules, seed: int):
        self.layout = layout
        self.rules = rules
        self._matchmaker = make_matchmaker(rules.matchmaking, **(rules.matchmaking_params or {}))
        self._rating_model = make_rating_model(rules.rating, **(rules.rating_params or {}))
        self._fitness = make_fitness(rules.fitness, **(rules.fitness_params or {}))
        self._evolution = Evolution(rules.evolution, rules.rank, rules.alpha)
        self._match_rng, self._evolution_rng = (
            np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(2)
        )
        self.members: dict[str, Member] = {
            seat: Member(seat=seat, role=role, adapter_id=adapter_id)
            for seat, role, adapter_id in zip(layout.seats, layout.roles, layout.adapter_ids, strict=True)
        }
        self.guest: Guest | None = None  # the past student that may be met in the next step
        self._seed = seed
        self.ratings: dict[str, Rating] = {seat: self._rating_model.initial() for seat in layout.seats}
        self._rewards: dict[str, deque[float]] = {seat: deque(maxlen=_REWARDS_KEPT) for seat in layout.seats}

    @property
    def match_stream(self) -> np.random.Generator:
        """The random stream that `make_matches` draws from."""
        return self._match_rng

    @property
    def is_rated(self) -> bool:
        """False for the single agent, which plays no matches."""
        return bool(self.layout.with_role(Role.TEACHER))

    # ---- matches ------------------------------------------------------------------------------------------------

    def make_matches(self, step: int) -> list[Match]:
        """Distinct students for every teacher; seats as names. Empty for the single agent.

        All teachers draw their first student together, as the matchmaker spreads them; each further one is drawn by
        the same rule from those that the teacher has not met in this step. With a guest seated, every teacher's first
        student gives way to it with probability ``evolution.hall_of_fame_matches``.
        """
        if not self.is_rated:
            return []
        teachers, students = self.layout.with_role(Role.TEACHER), self.layout.with_role(Role.STUDENT)
        matches = self._matchmaker.pair(teachers, students, self._win_probability, self._match_rng, step)
        if self.guest is not None:
            matches = self._with_guest(matches, step)
        for _ in range(1, self.rules.students_per_task):
            for teacher in teachers:
                met = {match.student for match in matches if match.teacher == teacher}
                others = [student for student in students if student not in met]
                matches += self._matchmaker.pair([teacher], others, self._win_probability, self._match_rng, step)
        return matches

    def _with_guest(self, matches: Sequence[Match], step: int) -> list[Match]:
        rate = self.rules.evolution.hall_of_fame_matches
        draws = self._guest_stream(1, step).random(len(matches))
        return [
            replace(match, student=GUEST, probability=rate)
            if draw < rate
            else replace(match, probability=match.probability * (1.0 - rate))
            for match, draw in zip(matches, draws, strict=True)
        ]

    def _guest_stream(self, purpose: int, step: int) -> np.random.Generator:
        """Depends on the seed and the step alone, so that a resumed run draws the same."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(_GUEST_STREAM, purpose, step)))

    def choose_guest(self, past: Sequence[Laureate], step: int) -> Laureate | None:
        """A past student for the step after ``step``, each equally likely; None without any, or where that is off."""
        if not past or not self.rules.evolution.hall_of_fame_matches:
            return None
        return past[int(self._guest_stream(0, step).integers(len(past)))]

    def seat_guest(self, laureate: Laureate, step: int) -> Guest:
        """Let ``laureate`` stand in the matches of the steps after ``step``."""
        assert self.layout.guest_id is not None
        self.guest = Guest(laureate.name, self.layout.guest_id, step, laureate.rating)
        return self.guest

    def players(self) -> dict[str, Member | Guest]:
        """Everybody who can stand in a match, by seat."""
        return {**self.members, **({GUEST: self.guest} if self.guest else {})}

    def record_match(self, match: Match, observation: MatchObservation) -> dict[str, Any]:
        """Update the ratings of living members; returns what ``matches.jsonl`` says of the outcome."""
        update = self._rating_model.update(self.ratings[match.teacher], self._rating_of(match.student), observation)
        self.ratings[match.teacher] = update.teacher
        if match.student != GUEST:
            self.ratings[match.student] = update.student
        players = self.players()
        return {
            "teacher": players[match.teacher].name,
            "student": players[match.student].name,
            "probability": match.probability,
            "expected": update.expected,
            "valid": observation.valid_tasks,
            "solve_rate": observation.solve_rate,
            "result": str(update.result),
            "teacher_rating": list(asdict(update.teacher).values()),
            "student_rating": list(asdict(self._rating_of(match.student)).values()),
        }

    def _rating_of(self, seat: str) -> Rating:
        if seat != GUEST:
            return self.ratings[seat]
        assert self.guest is not None
        return Rating(*self.guest.rating)

    def record_reward(self, seat: str, reward: float) -> None:
        """A member's mean reward of this step, for fitness by reward."""
        self._rewards[seat].append(reward)

    def _win_probability(self, teacher: str, student: str) -> float:
        return self._rating_model.win_probability(self.ratings[student], self.ratings[teacher])

    def fitness(self) -> dict[str, float]:
        """Fitness by seat; larger is better. By reward, a member without any yet counts as the worst so far."""
        worst = min((reward for rewards in self._rewards.values() for reward in rewards), default=0.0)
        return self._fitness(self.ratings, {seat: list(r) or [worst] for seat, r in self._rewards.items()})

    # ---- evolution ----------------------------------------------------------------------------------------------

    def evolves_at(self, step: int, steps_per_epoch: int) -> bool:
        return self._evolution.is_due(step, steps_per_epoch)

    def plan_births(self, step: int) -> list[Birth]:
        """Who is replaced by what; changes nothing yet but the random stream."""
        return self._evolution.plan(list(self.members.values()), self.fitness(), step, self._evolution_rng)

    def accept_births(self, births: Sequence[Birth], versions: Mapping[str, int], step: int) -> list[Member]:
        """Seat the children, with fresh ratings; returns the new members.

        Args:
            versions: adapter version of every seat, as the engine has it after it put the children in place.
        """
        children = []
        for birth in births:
            child = replace(birth.child_of(self.members[birth.seat], step), version=versions[birth.seat])
            self.members[birth.seat] = child
            self.ratings[birth.seat] = self._rating_model.initial()
            self._rewards[birth.seat].clear()
            children.append(child)
        return children

    def set_origins(self, origins: Mapping[str, Mapping[str, Any]]) -> None:
        """Note in the lineage of founders, by seat, which adapter they started from."""
        for seat, origin in origins.items():
            self.members[seat] = replace(self.members[seat], lineage=Lineage(params=dict(origin)))

    def set_versions(self, versions: Mapping[str, int]) -> None:
        """Adapter versions after an update, as the training engine reports them."""
        for seat, version in versions.items():
            if version != self.members[seat].version:
                self.members[seat] = replace(self.members[seat], version=version)

    # ---- persistence --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state, from which ``load_state_dict`` continues exactly."""
        return {
            "members": [
                {**asdict(member), "name": member.name, "rating": list(asdict(self.ratings[seat]).values())}
                for seat, member in self.members.items()
            ],
            "guest": None if self.guest is None else asdict(self.guest),
            "rewards": {seat: list(rewards) for seat, rewards in self._rewards.items()},
            "match_rng": self._match_rng.bit_generator.state,
            "evolution_rng": self._evolution_rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``.

        Raises:
            ValueError: it is the state of a population with other seats.
        """
        seats = tuple(record["seat"] for record in state["members"])
        if seats != self.layout.seats:
            raise ValueError(
                f"the checkpoint holds {', '.join(seats)} but this run is configured for "
                f"{', '.join(self.layout.seats)}; resume with the population it was made with"
            )
        for record in state["members"]:
            lineage = record["lineage"]
            self.members[record["seat"]] = Member(
                seat=record["seat"],
                role=Role(record["role"]),
                adapter_id=record["adapter_id"],
                generation=record["generation"],
                birth_step=record["birth_step"],
                version=record["version"],
                lineage=Lineage(
                    lineage["operator"],
                    tuple(lineage["parents"]),
                    tuple(lineage["parent_versions"]),
                    lineage["params"],
                    lineage["seed"],
                ),
            )
            self.ratings[record["seat"]] = Rating(*record["rating"])
        guest = state["guest"]
        self.guest = None if guest is None else Guest(**{**guest, "rating": tuple(guest["rating"])})
        for seat, rewards in state["rewards"].items():
            self._rewards[seat].extend(rewards)
        self._match_rng.bit_generator.state = state["match_rng"]
        self._evolution_rng.bit_generator.state = state["evolution_rng"]
