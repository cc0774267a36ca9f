"""docs/extending.md: its examples, installed as a package, do what the page says."""

import re
import subprocess
import sys
from pathlib import Path

from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import Task, TaskKind

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

USE = """
import sys
import numpy as np
import torch
from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.evolution.registry import make_operator, operator_names
from verl_populora.selfplay.matchmaking import make_matchmaker
from verl_populora.selfplay.ratings import MatchObservation, Rating, make_rating_model
from verl_populora.selfplay.selection import Contender, make_selection

assert "my_package" not in sys.modules
parent = AdapterWeights({"layer": LoraFactors(torch.ones(2, 3), torch.ones(4, 2), 2.0)}, 2, 4.0)
child = make_operator("shrink", factor=0.5)([parent], seed=1)
assert torch.equal(child.modules["layer"].b, torch.full((4, 2), 0.5)) and "shrink" in operator_names(1)

model = make_rating_model("logistic", rate=0.5)
update = model.update(model.initial(), model.initial(), MatchObservation(1.0, 3, 6))
assert update.student.mu == 0.25 and update.teacher.mu == -0.25 and update.result == "win"

table = {("t", "weak"): 0.1, ("t", "fitting"): 0.5}
target = make_matchmaker("target", width=0.1)
rng = np.random.default_rng(0)
pairs = [target.pair(["t"], ["weak", "fitting"], lambda t, s: table[t, s], rng, step)[0].student for step in range(50)]
assert pairs.count("fitting") == 50

ages = {"best": 9, "second": 1, "third": 5, "last": 0}
members = [Contender(seat, -float(rank), age) for rank, (seat, age) in enumerate(ages.items())]
assert make_selection("oldest").select(members, rng).replaced == ("third",)
"""

REFUSED = """
from verl_populora.selfplay.matchmaking import make_matchmaker
make_matchmaker("target", speed=1)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def install(folder: Path) -> None:
    """The page's code as ``my_package``, with its metadata, as pip would lay it out."""
    (folder / "my_package.py").write_text("\n\n".join(blocks("python")))
    metadata = folder / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (toml,) = blocks("toml")
    (metadata / "entry_points.txt").write_text(
        re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", toml).replace('"', "")
    )


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n"
    return subprocess.run(
        [sys.executable, "-c", path + code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_an_installed_package_adds_every_part_without_an_import(tmp_path):
    install(tmp_path)
    done = run(USE, tmp_path)
    assert done.returncode == 0, done.stderr[-1500:]


def test_a_parameter_that_a_part_lacks_is_refused(tmp_path):
    install(tmp_path)
    assert "matchmaker 'target' does not take these parameters" in run(REFUSED, tmp_path).stderr


def test_a_part_that_cannot_be_imported_and_a_name_used_twice_are_said(tmp_path):
    install(tmp_path)
    (tmp_path / "my_package.py").write_text("import nothing_of_this_name\n")
    assert "which can't be imported: No module named 'nothing_of_this_name'" in run(REFUSED, tmp_path).stderr
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[verl_populora.matchmakers]\ntarget = other:Target\n")
    assert "comes from several packages (my-package, other)" in run(REFUSED, tmp_path).stderr


def test_the_template_file_asks_proposers_and_solvers(tmp_path):
    file = tmp_path / "prompts.yaml"
    # The block holds indented fences of its own.
    file.write_text(re.search(r"^```yaml\n(.*?)^```$\n\nWith", PAGE, re.MULTILINE | re.DOTALL)[1])  # type: ignore[index]
    prompts = PromptSet.load(str(file))
    task = Task("1", TaskKind.CODE_O, "def f(x):\n    return x", ("3",), ("3",))
    assert "What does f(3) return?" in prompts.solver(task)[0]["content"]
    assert "def f(x):" in prompts.proposer(TaskKind.CODE_O, [task])[0]["content"]


def test_the_page_names_every_module_that_tells_task_kinds_apart():
    table = PAGE.partition("the modules that tell kinds apart")[2]
    handling = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "azr_overrides").rglob("*.py")
        if re.search(r"TaskKind\.CODE_|CODE_[OIFE] =|code_f_reward_type ==", path.read_text(encoding="utf-8"))
    }
    assert set(re.findall(r"`(azr_overrides/\S+\.py)`", table)) == handling
