"""Imports only point down, and the lower layers live without the GPU stack."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("verl", "ray", "vllm", "transfer_queue")

# Packages and modules by layer, with what they must not import, also indirectly.
LAYERS = {
    "azr_overrides/tasks": (*HEAVY, "torch", "transformers", "peft"),
    "azr_overrides/sandbox": (*HEAVY, "torch", "transformers", "peft"),
    "azr_overrides/rewards": (*HEAVY, "torch", "transformers", "peft"),
    "azr_overrides/episode.py": (*HEAVY, "torch", "transformers", "peft"),
    "azr_overrides/buffers.py": (*HEAVY, "torch", "transformers", "peft"),
    "azr_overrides/planning.py": (*HEAVY, "transformers"),
    "verl_populora/selfplay": (*HEAVY, "torch", "transformers", "peft"),
    "verl_populora/evolution": HEAVY,
    "verl_populora/adapters": HEAVY,
    "verl_populora/population.py": HEAVY,
    "verl_populora/layout.py": (*HEAVY, "torch"),
    "verl_populora/memory.py": (*HEAVY, "torch"),
    "verl_populora/rundir.py": (*HEAVY, "torch"),
    "verl_populora/report": (*HEAVY, "torch"),
    "verl_populora/engine/delivery.py": HEAVY,
}

BLOCKER = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is imported here, but this layer must do without it")
sys.meta_path.insert(0, Block())
for module in {modules}:
    __import__(module)
"""


# Command-line tools sit on top of everything: they may import all packages, and no module imports them.
TOOLS = {"azr_overrides/compare.py", "verl_populora/doctor.py"}


def modules_of(place: str) -> list[str]:
    path = ROOT / place
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    # What runs inside the sandbox's bare interpreters is not imported by the trainer.
    return [n.removesuffix(".__init__") for n in names if not n.endswith("__main__") and ".template." not in n]


@pytest.mark.parametrize("place", LAYERS)
def test_a_lower_layer_needs_nothing_above_it(place):
    code = BLOCKER.format(blocked=set(LAYERS[place]), modules=modules_of(place))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-1500:]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return names


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("verl_populora", ("azr_overrides", "eval", "recipes", "patches")),
        ("azr_overrides", ("eval", "recipes")),
        ("patches", ("azr_overrides", "eval", "recipes")),
    ],
)
def test_packages_import_only_downwards(package, forbidden):
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in TOOLS
        for name in imported(path)
        if name.split(".")[0] in forbidden
    ]
    assert not wrong


def test_nothing_imports_a_command_line_tool():
    tools = {tool.removesuffix(".py").replace("/", ".") for tool in TOOLS}
    packages = ("verl_populora", "azr_overrides", "eval", "patches", "recipes")
    users = [p for package in packages for p in (ROOT / package).rglob("*.py") if imported(p) & tools]
    assert not users
