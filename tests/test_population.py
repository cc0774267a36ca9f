import json

import pytest

from verl_populora.evolution.config import EvolutionConfig
from verl_populora.evolution.hall_of_fame import Laureate
from verl_populora.layout import PopulationLayout
from verl_populora.members import GUEST, Role
from verl_populora.population import Population, PopulationRules
from verl_populora.selfplay.ratings import MatchObservation

RULES = PopulationRules(evolution=EvolutionConfig(interval=5))


def population(teachers=3, students=3, seed=1, rules=RULES):
    return Population(PopulationLayout.build(teachers, students), rules, seed)


def play(population, steps):
    """Matches whose outcome depends only on who plays; births are accepted with made-up versions."""
    told = []
    for step in steps:
        for match in population.make_matches(step):
            rate = 0.2 + 0.2 * int(match.student[-1])
            told.append(population.record_match(match, MatchObservation(rate, 4, 16)))
        population.set_versions({seat: member.version + 1 for seat, member in population.members.items()})
        if population.evolves_at(step, steps_per_epoch=100):
            births = population.plan_births(step)
            versions = {seat: member.version for seat, member in population.members.items()}
            told.append([(b.seat, b.replaced, b.lineage) for b in births])
            population.accept_births(births, {**versions, **{b.seat: versions[b.seat] + 1 for b in births}}, step)
    return told


def test_one_seed_gives_one_history():
    assert play(population(), range(1, 16)) == play(population(), range(1, 16))
    assert play(population(), range(1, 16)) != play(population(seed=2), range(1, 16))


def test_a_restored_population_continues_exactly():
    straight, first, resumed = population(), population(), population(seed=99)
    play(straight, range(1, 8))
    play(first, range(1, 8))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert play(straight, range(8, 21)) == play(resumed, range(8, 21))
    assert straight.state_dict() == resumed.state_dict()


def test_a_child_takes_the_seat_with_a_fresh_rating():
    one = population()
    play(one, range(1, 6))
    children = [m for m in one.members.values() if m.generation == 1]
    assert len(children) == 2  # one of each role
    for child in children:
        assert child.name == f"{child.seat}-g1" and child.birth_step == 5
        assert one.ratings[child.seat].mu == 25.0
        assert child.lineage.parents


def test_the_least_fit_of_each_role_is_replaced():
    one = population()
    play(one, range(1, 5))
    fitness = one.fitness()
    for match in one.make_matches(5):
        one.record_match(match, MatchObservation(0.5, 4, 16))
    fitness = one.fitness()
    replaced = {birth.seat for birth in one.plan_births(5)}
    for role in ("teacher", "student"):
        group = {seat: value for seat, value in fitness.items() if seat.startswith(role)}
        assert min(group, key=group.__getitem__) in replaced


def test_the_single_agent_plays_no_matches():
    single = population(0, 0, rules=PopulationRules())
    assert single.make_matches(1) == [] and not single.is_rated


def test_the_state_of_another_population_is_refused():
    with pytest.raises(ValueError, match="resume with the population it was made with"):
        population().load_state_dict(population(2, 2).state_dict())


def test_fitness_can_be_the_recent_reward():
    rules = PopulationRules(fitness="mean_reward", fitness_params={"window": 2})
    one = population(1, 1, rules=rules)
    for reward in (0.0, 1.0, 0.5):
        one.record_reward("teacher1", reward)
        one.record_reward("student1", -reward)
    assert one.fitness() == {"teacher1": 0.75, "student1": -0.75}


def test_a_member_that_has_earned_nothing_yet_counts_as_the_worst():
    one = population(1, 2, rules=PopulationRules(fitness="mean_reward"))
    one.record_reward("teacher1", 0.5)
    one.record_reward("student1", -0.5)
    assert one.fitness()["student2"] == -0.5


def test_a_teacher_meets_several_different_students_a_step():
    three = population(2, 3, rules=PopulationRules(students_per_task=3))
    for step in range(1, 6):
        matches = three.make_matches(step)
        for teacher in ("teacher1", "teacher2"):
            met = [match.student for match in matches if match.teacher == teacher]
            assert sorted(met) == ["student1", "student2", "student3"]
    one, plain = (population(4, 4, rules=PopulationRules(students_per_task=count)) for count in (2, 1))
    assert one.make_matches(1)[:4] == plain.make_matches(1)


# ---- past students as opponents -------------------------------------------------------------------------------------

PAST = [Laureate(f"student{n}", Role.STUDENT, 7, 3.0, 5, (20.0 + n, 2.0)) for n in (1, 2, 3)]


def with_guest(rate, seed=1):
    rules = PopulationRules(evolution=EvolutionConfig(hall_of_fame=3, hall_of_fame_matches=rate))
    one = Population(PopulationLayout.build(3, 3, guest=True), rules, seed)
    one.seat_guest(PAST[1], step=4)
    return one


def test_the_guest_is_met_at_its_rate_and_the_drawn_probabilities_say_so():
    one = with_guest(0.25)
    matches = [match for step in range(400) for match in one.make_matches(step)]
    met = [match for match in matches if match.student == GUEST]
    assert 0.2 < len(met) / len(matches) < 0.3
    assert {match.probability for match in met} == {0.25}
    assert all(match.probability <= 0.75 for match in matches if match.student != GUEST)


def test_only_the_living_opponents_rating_moves():
    one = with_guest(1.0)
    (match, *_) = one.make_matches(5)
    before = dict(one.ratings)
    told = one.record_match(match, MatchObservation(1.0, 4, 16))
    assert told["student"] == "student2" and told["student_rating"] == [22.0, 2.0]
    assert one.ratings[match.teacher].mu < before[match.teacher].mu
    assert {seat for seat in one.ratings if one.ratings[seat] != before[seat]} == {match.teacher}


def test_a_guest_and_what_it_meets_survive_a_restart():
    one = with_guest(0.5)
    resumed = Population(one.layout, one.rules, seed=1)
    resumed.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert resumed.guest == one.guest
    assert [resumed.make_matches(step) for step in range(5, 15)] == [one.make_matches(step) for step in range(5, 15)]


def test_every_past_student_is_invited_now_and_then_and_none_without_the_option():
    one = with_guest(0.5)
    assert {one.choose_guest(PAST, step) for step in range(40)} == set(PAST)
    assert one.choose_guest([], 3) is None and population().choose_guest(PAST, 3) is None
