from azr_overrides.step_metrics import match_observation, task_metrics
from verl_populora.selfplay.ratings import MatchObservation


def record(
    teacher: str | None = "t1", valid=True, rate=0.5, accuracies=(1.0, 0.0), kind="code_o", reason=None, guess_rate=None
):
    attempts = [
        {
            "student": "s1",
            "accuracy": a,
            "outcome": "correct" if a else "wrong",
            "reward": 1.0 if a else -0.5,
            "trained": True,
        }
        for a in accuracies
    ]
    return {
        "teacher": teacher,
        "kind": kind,
        "valid": valid,
        "reason": reason,
        "solve_rate": rate if valid else None,
        "guess_rate": guess_rate,
        "complexity": {"ast_depth": 6, "cyclomatic": 2, "lines": 4, "variables": 1} if valid else None,
        "reward": 1 - rate if valid else -1.0,
        "attempts": attempts if valid else [],
    }


def seat(name):
    return {"t1": "teacher1", "t2": "teacher2", "s1": "student1"}[name]


def test_rates_are_over_the_right_denominators():
    records = [
        record(rate=0.5),
        record(rate=0.0, accuracies=(0.0, 0.0)),
        record(rate=1.0, accuracies=(1.0, 1.0), kind="code_i"),
        record(teacher="t2", valid=False, reason="syntax"),
    ]
    metrics = task_metrics(records, seat)
    assert metrics["tasks/proposed"] == 4 and metrics["tasks/valid"] == 3
    assert metrics["tasks/valid_rate"] == 0.75
    assert metrics["tasks/solve_rate"] == 0.5
    assert metrics["tasks/mixed_rate"] == metrics["tasks/unsolved_rate"] == metrics["tasks/solved_rate"] == 1 / 3
    assert metrics["tasks/code_i/solve_rate"] == 1.0
    assert metrics["tasks/attempts"] == 6
    assert metrics["teacher/teacher2/valid_rate"] == 0.0
    assert metrics["student/student1/solve_rate"] == 0.5
    assert metrics["invalid/syntax"] == 1
    assert metrics["complexity/ast_depth"] == 6.0
    assert metrics["role/teacher/reward"] == (0.5 + 1.0 + 0.0 - 1.0) / 4
    assert metrics["role/student/reward"] == (3 * 1.0 - 3 * 0.5) / 6


def test_guess_rates_are_averaged_over_the_tasks_that_have_one():
    records = [record(guess_rate=0.5), record(guess_rate=1.0), record(), record(valid=False, reason="syntax")]
    assert task_metrics(records, seat)["tasks/guess_rate"] == 0.75
    assert "tasks/guess_rate" not in task_metrics([record()], seat)


def test_attempts_that_only_measure_are_no_rewards_of_the_student():
    measured = record()
    for attempt in measured["attempts"]:
        attempt["trained"] = False
    assert "role/student/reward" not in task_metrics([measured], seat)


def test_what_was_not_measured_is_absent_rather_than_zero():
    metrics = task_metrics([record(valid=False, reason="syntax")], seat)
    assert "tasks/solve_rate" not in metrics
    assert "complexity/lines" not in metrics
    assert "teacher/teacher1/solve_rate" not in metrics
    assert task_metrics([], seat)["tasks/proposed"] == 0


def test_solver_tasks_of_the_single_agent_are_not_proposals():
    metrics = task_metrics([record(teacher=None, accuracies=(1.0,))], seat)
    assert metrics["tasks/proposed"] == 0
    assert metrics["student/student1/solve_rate"] == 1.0


def test_a_match_counts_its_own_students_attempts():
    both = record(accuracies=(1.0, 1.0))
    both["attempts"] += [{"student": "s2", "accuracy": accuracy} for accuracy in (0.5, 1.0)]
    records = [both, record(accuracies=(1.0, 0.0)), record(valid=False, reason="syntax")]
    assert match_observation(records, "s1", "binary") == MatchObservation(0.75, 2, 4)
    assert match_observation(records, "s2", "binary") == MatchObservation(0.5, 2, 2)
    assert match_observation(records, "s2", "accuracy") == MatchObservation(0.75, 2, 2)
    assert match_observation(records, "s3", "binary") == MatchObservation(None, 2, 0)
