"""Coverage of program structure: what is one cluster, what founds another, and how it survives a restart."""

import json
import subprocess
import sys

import pytest

from azr_overrides.tasks.coverage import CoverageStep, CoverageTracker, structure_features, structure_sketch

LOOP = "def f(xs):\n    total = 0\n    for x in xs:\n        if x % 2:\n            total += x\n    return total"
RENAMED = (
    'def g(items: list) -> int:\n    """Doc."""\n    acc = 7  # other\n    for it in items:\n'
    "        if it % 3:\n            acc += it\n    return acc"
)
TEXT = "def f(s):\n    words = s.split()\n    return ' '.join(sorted(w.upper() for w in words))"
BRANCHES = "def f(a, b):\n    if a > b:\n        return a - b\n    elif a == b:\n        return 0\n    return [b, a]"


def test_names_constants_annotations_and_docstrings_do_not_matter():
    assert structure_features(LOOP) == structure_features(RENAMED)
    tracker = CoverageTracker()
    assert [tracker.add(LOOP), tracker.add(RENAMED), len(tracker)] == [True, False, 1]


@pytest.mark.parametrize(
    "other",
    [
        LOOP.replace("%", "+"),
        LOOP.replace("total += x", "total -= x"),
        LOOP.replace("0", "''"),
        LOOP.replace("return total", "return abs(total)"),
        LOOP.replace("        if x % 2:\n            total", "        total"),
        LOOP + "\n    return total",
    ],
)
def test_operators_calls_types_and_statements_matter(other):
    assert structure_features(LOOP) != structure_features(other)
    exact = CoverageTracker(threshold=1.0)
    assert exact.add(LOOP) and exact.add(other)


def test_a_small_edit_stays_in_the_cluster_and_another_algorithm_founds_one():
    tracker = CoverageTracker()
    edited = LOOP.replace("total += x\n", "total += x * 2\n")
    assert [tracker.add(program) for program in (LOOP, edited, TEXT, BRANCHES)] == [True, False, True, True]
    assert [tracker.cluster(program) for program in (BRANCHES, edited, TEXT)] == [2, 0, 1]


def test_repetition_makes_a_program_different_but_not_without_bound():
    short, longer, longest = ("def f(x):\n" + "    x += 1\n" * count + "    return x" for count in (2, 9, 200))
    assert structure_features(short) < structure_features(longer) == structure_features(longest)


def test_sketch_agreement_estimates_the_jaccard_similarity():
    programs = [LOOP, TEXT, BRANCHES, *("def f(x):\n" + line + "    return x" for line in variants())]
    errors = []
    for left in programs:
        for right in programs:
            a, b = structure_features(left), structure_features(right)
            estimate = (structure_sketch(left) == structure_sketch(right)).mean()
            errors.append(estimate - len(a & b) / len(a | b))
    assert abs(sum(errors) / len(errors)) < 0.02
    assert max(map(abs, errors)) < 0.25  # four standard errors of 64 hashes


def variants():
    for count in range(1, 6):
        yield "    y = [x]\n" + "    y.append(x + 1)\n" * count
        yield "    for i in range(x):\n        x = x - i\n" * count


def test_a_batch_reports_new_total_and_distinct():
    tracker = CoverageTracker()
    assert tracker.add_batch([LOOP, RENAMED, TEXT, LOOP]) == CoverageStep(2, 2, 0.5)
    assert tracker.add_batch([LOOP, BRANCHES]) == CoverageStep(1, 3, 1.0)
    assert tracker.add_batch([]) == CoverageStep(0, 3, 0.0)


def test_a_restored_tracker_goes_on_as_if_never_interrupted():
    programs = ["def f(x):\n" + line + "    return x" for line in variants()]
    whole = CoverageTracker(threshold=0.8)
    expected = [whole.cluster(program) for program in programs + programs]
    first = CoverageTracker(threshold=0.8)
    clusters = [first.cluster(program) for program in programs[:7]]
    second = CoverageTracker(threshold=0.8)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    clusters += [second.cluster(program) for program in programs[7:] + programs]
    assert clusters == expected
    assert second.state_dict() == whole.state_dict()


def test_more_clusters_than_the_first_allocation_are_kept():
    tracker = CoverageTracker(threshold=1.0)
    programs = [f"def f(x):\n    return x.m{index}()" for index in range(600)]
    assert sum(map(tracker.add, programs)) == 600
    assert tracker.cluster(programs[0]) == 0 and tracker.cluster(programs[599]) == 599


def test_another_process_finds_the_same_clusters():
    code = f"from azr_overrides.tasks.coverage import structure_sketch as s; print(s({LOOP!r}).tolist())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{structure_sketch(LOOP).tolist()}\n"}


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="threshold"):
        CoverageTracker(threshold=0)
    with pytest.raises(ValueError, match="not a Python program"):
        CoverageTracker().add("def f(:")
    state = CoverageTracker(0.5).state_dict()
    with pytest.raises(ValueError, match="threshold 0.5"):
        CoverageTracker(0.4).load_state_dict(state)
    with pytest.raises(ValueError, match="another length"):
        CoverageTracker(0.5).load_state_dict({"threshold": 0.5, "sketches": ["00" * 10]})


def test_a_deep_program_is_no_problem():
    assert CoverageTracker().add("def f(x):\n    return " + " + ".join(["x"] * 2500))
