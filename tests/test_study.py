"""The study on the tiny base: arms that can run, the driver's bookkeeping, measures, intervals and tables."""

import fcntl
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import stdev

import pytest

from azr_overrides.compat import translate
from azr_overrides.config import compose
from azr_overrides.prepare import prepare
from azr_overrides.settings import population_rules
from recipes.study import __main__ as study
from recipes.study import summary
from recipes.study.arms import ARMS, OPERATORS, SIZES, choose_arms
from recipes.study.measures import Course, course, read_measures
from recipes.study.stats import difference, mean, t_quantile
from verl_populora.report.cost_table import run_facts
from verl_populora.report.data import load_run
from verl_populora.rundir import HELDOUT, RunDirError, RunWriter

ROOT = Path(__file__).parents[1]
OVERRIDES = (
    "device=cpu",
    f"actor_rollout_ref.model.path={ROOT / 'recipes/tiny_base/model'}",
    f"azr.prompt_source={ROOT / 'recipes/tiny_base/prompts.yaml'}",
    "data.train_batch_size=9",
    "azr.reward.n_samples=4",
)
SETTINGS = study.Settings(SIZES["smoke"], "total", 1e-3, OVERRIDES)


# ---- arms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["single", "1t1s", "2t2s", "4t4s", "8t8s", "4t4s-frozen-teachers"])
def test_all_arms_generate_as_many_samples_a_step(arm, tmp_path):
    config = compose(translate(SETTINGS.command(arm, 2, tmp_path / "run")[3:])[0])
    sizes = prepare(config)
    teachers = max(1, int(config.population.teachers))
    samples = teachers * sizes.proposals_per_teacher * (1 + sizes.attempts) + sizes.solver_tasks
    assert samples == pytest.approx(162, abs=2)
    assert config.seed == 2


def test_ablations_change_what_they_name(tmp_path):
    def rules(arm):
        config = compose(translate(SETTINGS.command(arm, 1, tmp_path / arm)[3:])[0])
        prepare(config)
        return population_rules(config), config

    assert rules("4t4s-uniform")[0].matchmaking == "uniform"
    assert not rules("4t4s-no-evolution")[0].evolution.enabled
    assert rules("4t4s-frozen-teachers")[1].actor_rollout_ref.model.lora.learning_rates.teacher == 0
    mutant, crossed = (rules(f"4t4s-only-{name}")[0].evolution for name in ("layer_gaussian", "dare"))
    assert list(mutant.mutations) == ["layer_gaussian"] and mutant.crossover_rate == 0
    assert list(crossed.crossovers) == ["dare"] and crossed.crossover_rate == 1
    assert {f"4t4s-only-{name}" for name in OPERATORS} <= set(ARMS) and len(OPERATORS) == 8


def test_arms_are_chosen_by_name():
    assert choose_arms("single, 4t4s single") == ("single", "4t4s")
    assert len(choose_arms("ablations")) == 3 + len(OPERATORS)
    for wrong in ("5t5s", " "):
        with pytest.raises(ValueError, match="choose from single, 1t1s"):
            choose_arms(wrong)


def test_no_child_is_graded_untrained():
    assert all(size.steps % size.evolution_interval for size in SIZES.values())


# ---- the driver -----------------------------------------------------------------------------------------------------


def test_a_study_is_continued_with_the_same_settings_only(tmp_path):
    study.check_settings(tmp_path, SETTINGS)
    study.check_settings(tmp_path, SETTINGS)
    with pytest.raises(study.StudyError, match="budget was 'total' and is 'per_adapter' now"):
        study.check_settings(tmp_path, study.Settings(SIZES["smoke"], "per_adapter", 1e-3, OVERRIDES))
    with pytest.raises(study.StudyError, match="recipes/study.sh"):
        study.Settings(SIZES["smoke"], "total", 1e-3, ()).record()


def test_two_studies_do_not_share_a_directory(tmp_path, capsys):
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert study.main([str(tmp_path), *OVERRIDES]) == 2
    assert "another study" in capsys.readouterr().err


def test_finished_runs_are_skipped_and_the_rest_is_run_seed_by_seed(tmp_path, monkeypatch, capsys):
    """Everything but training and grading, which the end-to-end tests run: here a run is written instead."""
    started = []

    def write(command, log):
        del log
        started.append(Path(command[-1].removeprefix("run_dir=")).name)
        write_run(Path(command[-1].removeprefix("run_dir=")), steps=SIZES["smoke"].steps)
        return 1 if started[-1] == "4t4s-seed1" else 0

    write_run(tmp_path / "single-seed1", steps=SIZES["smoke"].steps)
    monkeypatch.setattr(study, "run_logged", write)
    arms = ("single", "4t4s")
    assert study.run_study(tmp_path, SETTINGS, arms, 2) == study.FAILED
    assert started == ["4t4s-seed1", "single-seed2", "4t4s-seed2"]
    assert "1 of 4 runs failed: 4t4s-seed1" in capsys.readouterr().out
    assert (tmp_path / "report" / "report.html").exists() and (tmp_path / "summary.md").exists()
    started.clear()
    assert study.run_study(tmp_path, SETTINGS, arms, 2) == study.OK
    assert started == []


def test_an_unfinished_run_is_not_taken_for_a_finished_one(tmp_path):
    run = write_run(tmp_path / "run", steps=3)
    assert study.is_trained(run, 3) and not study.is_trained(run, 4)
    RunWriter(run).run_info({"exit_reason": "stopped"})
    assert not study.is_trained(run, 3)
    assert not study.is_trained(tmp_path / "nothing", 3)


def test_a_stopped_command_is_asked_to_end_and_its_children_go_too(tmp_path):
    script = (
        "import signal, sys, subprocess, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('ended', child.pid, flush=True)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    driver = (
        "import signal, sys\nfrom pathlib import Path\nfrom recipes.study import __main__ as study\n"
        "signal.signal(signal.SIGTERM, study._interrupt)\n"
        f"study.run_logged([sys.executable, '-c', {script!r}], Path({str(tmp_path / 'log')!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "log"
    while not (log.exists() and "ready" in log.read_text()):
        assert process.poll() is None, process.communicate()[1]
    process.terminate()
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    pid = int(log.read_text().split()[-1])
    assert not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()


# ---- measures and intervals -----------------------------------------------------------------------------------------


def test_t_quantiles_agree_with_the_table():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 10: 2.228, 30: 2.042}
    assert {degrees: round(t_quantile(degrees), 3) for degrees in table} == table


def test_intervals_over_seeds():
    values, others = [1.0, 2.0, 6.0], [0.0, 4.0]
    estimate = mean(values)
    assert estimate.value == 3.0 and estimate.half == pytest.approx(4.3027 * stdev(values) / math.sqrt(3), rel=1e-4)
    gap = difference(values, others)
    parts = stdev(values) ** 2 / 3, stdev(others) ** 2 / 2
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 1)
    assert gap.value == 1.0 and gap.half == pytest.approx(t_quantile(degrees) * math.sqrt(sum(parts)))
    assert mean([2.0]).half is None and not mean([2.0]).excludes_zero
    assert difference([1.0, 1.0], [0.0, 0.0]).half == 0.0
    for wrong in (lambda: mean([]), lambda: difference([], [1.0])):
        with pytest.raises(ValueError):
            wrong()


def test_a_course_compares_the_quarters_of_a_run():
    assert course([1.0, 3.0, None, 0.0, 0.0, 0.0, None, 5.0]) == Course(2.0, 5.0)
    assert course([1.0, 2.0]) == Course(1.0, 2.0)
    assert course([None, 1.0]) is None


def write_run(path, steps=8, lift=0.0, teachers=0):
    """A finished and graded run whose solve rate rises from 0 to ``lift`` and whose members score 0.5 + lift."""
    writer = RunWriter(path)
    seats = ["teacher1", "student1"] if teachers else ["agent1"]
    writer.config({"population": {"teachers": teachers, "budget": "total"}})
    for step in range(1, steps + 1):
        metrics = {"time/step": 2.0, "tasks/valid": 4, "coverage/new": 2, "tasks/solve_rate": lift * (step > steps / 2)}
        for seat in seats:
            metrics |= {f"member/{seat}/tokens": 50, f"member/{seat}/samples": 5}
        writer.metrics(step, metrics)
        attempt = {"student": seats[-1], "response_tokens": 30}
        writer.tasks(step, [{"valid": False, "teacher": seats[0], "response_tokens": 10, "attempts": [attempt] * 2}])
    writer.run_info({"exit_reason": "finished"})

    def member(name, role, score):
        accuracy = {"all": score, "code_o": score}
        return {"name": name, "role": role, "accuracy": {"greedy": accuracy, "sampled": accuracy}}

    roles = [(seat, seat.rstrip("1"), 0.5 + lift * (1 + number)) for number, seat in enumerate(seats)]
    record = {"before": member("base", "base", 0.5), "after": [member(*role) for role in roles]}
    (path / HELDOUT).write_text(json.dumps(record))
    return path


def test_measures_of_a_run(tmp_path):
    run = read_measures(write_run(tmp_path / "run", lift=0.1, teachers=1))
    assert run.curriculum["solve rate of proposed tasks"] == Course(0.0, 0.1)
    assert run.curriculum["new structures for 100 valid tasks"] == Course(50.0, 50.0)
    assert "AST depth" not in run.curriculum
    held = run.heldout["greedy"]
    assert (held.base, held.mean, held.best, held.weakest) == pytest.approx((0.5, 0.65, 0.7, 0.6))
    assert (held.teachers, held.students) == pytest.approx((0.6, 0.7))
    assert (run.cost.samples, run.cost.generated, run.cost.trained) == (24, 8 * 70, 8 * 100)


def test_the_report_shows_held_out_accuracy(tmp_path):
    facts = dict(run_facts(load_run(write_run(tmp_path / "run", lift=0.1, teachers=1))))
    expected = "before 50.0%, after 65.0% on average, best 70.0% (student1), weakest 60.0% (teacher1)"
    assert facts["held-out accuracy, greedy"] == expected
    single = dict(run_facts(load_run(write_run(tmp_path / "single", lift=0.1))))
    assert single["held-out accuracy, sampled"] == "before 50.0%, after 60.0%"


def test_the_summary_shows_means_intervals_and_differences(tmp_path):
    for seed, lift in ((1, 0.0), (2, 0.02)):
        write_run(tmp_path / f"single-seed{seed}", lift=lift)
        write_run(tmp_path / f"1t1s-seed{seed}", lift=lift + 0.3, teachers=1)
    assert summary.main([str(tmp_path)]) == 0
    text = (tmp_path / "summary.md").read_text()

    def row(label, nth=0):
        line = [line for line in text.splitlines() if line.startswith(f"| {label} |")][nth]
        return [cell.strip() for cell in line.strip("|").split("|")][1:]

    assert "`total`" in text and "single 2, 1t1s 2" in text
    assert row("single")[:4] == ["1", "8", "24", "560"]
    assert row("solve rate of proposed tasks")[0] == "0.0% → 1.0% (+1.0 ± 12.7)"
    assert row("solve rate of proposed tasks")[1] == "0.0% → 31.0% (**+31.0 ± 12.7**)"
    assert row("mean of students") == ["–", "112.0% (**+62.0 ± 25.4**)"]
    assert row("change of solve rate of proposed tasks") == ["**+30.0 [+23.9, +36.1]**"]
    assert row("AST depth") == ["–", "–"]
    assert "| held-out greedy, weakest member |" in text
    assert json.loads((tmp_path / "summary.json").read_text())["1t1s"]["2"]["heldout"]["greedy"]["base"] == 0.5


def test_a_directory_without_finished_runs_has_no_summary(tmp_path, capsys):
    with pytest.raises(RunDirError, match="no finished run"):
        summary.read_study(tmp_path)
    assert summary.main([str(tmp_path)]) == 2
    assert "no finished run" in capsys.readouterr().err


# ---- the recipe -----------------------------------------------------------------------------------------------------


def test_the_recipe_plans_and_refuses_what_it_cannot_do(tmp_path):
    def recipe(*arguments, **environment):
        command = ["bash", str(ROOT / "recipes/study.sh"), *arguments]
        variables = {"PATH": "/usr/bin:/bin", **environment}
        return subprocess.run(command, text=True, capture_output=True, env=variables, cwd=tmp_path)

    if (ROOT / ".venv/bin/python").exists():
        settings = {"STUDY_ARMS": "4t4s-uniform", "STUDY_SEEDS": "2", "STUDY_SIZE": "overnight"}
        planned = recipe("out", "azr.reward.n_samples=6", "--dry-run", **settings)
        lines = planned.stdout.splitlines()
        assert planned.returncode == 0 and len(lines) == 2, planned.stderr
        assert f"run_dir={tmp_path}/out/4t4s-uniform-seed2" in lines[1] and "total_training_steps=155" in lines[1]
        assert "n_samples=6" in lines[1]
        assert "can't be an override" in recipe("out", "seed=9", "--dry-run").stderr
        assert "there is no arm '3t3s'" in recipe("out", "--dry-run", STUDY_ARMS="3t3s").stderr
    assert recipe().returncode == 2 and recipe("population=4t4s").returncode == 2
    assert "STUDY_SIZE" in recipe("--help").stdout
