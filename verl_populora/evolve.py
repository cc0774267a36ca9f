"""Variation operators on ordinary PEFT LoRA folders.

    python -m verl_populora.evolve mutate    ADAPTER_DIR [--operator spectral] [--seed 0] [--set epsilon=0.2] -o OUT
    python -m verl_populora.evolve crossover FITTER_DIR OTHER_DIR [--operator extrapolation] [--seed 0] -o OUT
    python -m verl_populora.evolve distance  ADAPTER_DIR ADAPTER_DIR ...
    python -m verl_populora.evolve info      ADAPTER_DIR ...

Every child is a PEFT folder with its parents' configuration and metadata, and ``lineage.json`` beside the weights says
how to make it again.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track as progress_bar

from verl_populora.adapters.peft_io import WEIGHTS_FILE, PeftAdapter, read_peft, write_peft
from verl_populora.adapters.weights import AdapterWeights
from verl_populora.evolution.diversity import diversity
from verl_populora.evolution.lowrank import svd
from verl_populora.evolution.registry import ALIASES, make_operator, operator_class, operator_names

LINEAGE_FILE = "lineage.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, or 2 after an error that the user can fix."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130


def breed(
    operator: str,
    parent_folders: Sequence[str | os.PathLike],
    seed: int,
    out: str | os.PathLike,
    params: Mapping[str, Any] | None = None,
    show_progress: bool = False,
) -> None:
    """Make one child of PEFT folders and write it to ``out`` with its lineage.

    Args:
        parent_folders: one for a mutation, two for a crossover, the fitter parent first.
        params: parameters of the operator, those of its dataclass.

    Raises ``ValueError`` or ``FileNotFoundError`` before anything is written, also where ``out`` already holds an
    adapter.
    """
    out = Path(out)
    if (out / WEIGHTS_FILE).exists():
        raise ValueError(f"{out} already holds an adapter; choose another folder or remove it")
    variation = make_operator(operator, **(params or {}))
    adapters = [read_peft(folder) for folder in parent_folders]
    _check_same_base(parent_folders, adapters)
    track = _track(f"{variation.name}") if show_progress else None
    child = variation([adapter.weights for adapter in adapters], seed, track)
    first = adapters[0]
    write_peft(out, child, first.base_model_name, first.config, first.metadata)
    lineage = {
        "operator": variation.name,
        "params": variation.params,
        "seed": seed,
        "parents": [
            {"path": os.path.abspath(folder), "sha256": _sha256(Path(folder) / WEIGHTS_FILE)}
            for folder in parent_folders
        ],
        "torch": torch.__version__,
    }
    (out / LINEAGE_FILE).write_text(json.dumps(lineage, indent=2) + "\n", encoding="utf-8")


def _run_breed(options: argparse.Namespace) -> int:
    params = dict(_parameter(text) for text in options.set)
    if options.modules:
        params["modules"] = options.modules
    breed(options.operator, options.adapters, options.seed, options.out, params, show_progress=not options.quiet)
    print(f"wrote {options.out}")
    return 0


def _run_distance(options: argparse.Namespace) -> int:
    if len(options.adapters) < 2:
        raise ValueError("distance needs at least two adapters")
    adapters = [read_peft(folder) for folder in options.adapters]
    _check_same_base(options.adapters, adapters)
    report = diversity({folder: one.weights for folder, one in zip(options.adapters, adapters, strict=True)})
    if options.json:
        pairs = [
            {"first": pair.first, "second": pair.second, "cosine": pair.cosine, "distance": _number(pair.distance)}
            | {"left_angle": _number(pair.left_angle), "right_angle": _number(pair.right_angle)}
            for pair in report.pairs
        ]
        print(json.dumps({"pairs": pairs, "norms": dict(report.norms), "collapsed": report.collapsed}))
        return 0
    for pair in report.pairs:
        print(f"{pair.first}  {pair.second}")
        print(
            f"  cosine {pair.cosine:+.6f}   relative distance {pair.distance:.6f}   root mean square principal angle"
            f" {math.degrees(pair.left_angle):.2f} deg (output side),"
            f" {math.degrees(pair.right_angle):.2f} deg (input side)"
        )
    if report.collapsed:
        print("the adapters are copies of one another up to a scale")
    return 0


def _run_info(options: argparse.Namespace) -> int:
    reports = [_describe(folder, read_peft(folder)) for folder in options.adapters]
    if options.json:
        print(json.dumps(reports))
        return 0
    for report in reports:
        for key, value in report.items():
            print(f"{key:>16}: {value}")
        print()
    return 0


def _describe(folder: str, adapter: PeftAdapter) -> dict[str, Any]:
    weights = adapter.weights
    tensors = [tensor for module in weights.modules.values() for tensor in (module.a, module.b)]
    spectra = [svd(module).values for module in weights.modules.values()]
    total = math.sqrt(sum(float(values.square().sum()) for values in spectra))
    report: dict[str, Any] = {
        "adapter": folder,
        "base": adapter.base_model_name or "unknown",
        "modules": len(weights.modules),
        "parameters": sum(tensor.numel() for tensor in tensors),
        "dtype": ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
        "rank": weights.rank,
        "alpha": weights.alpha,
        "update norm": round(total, 6),
        "effective rank": round(_mean_effective_rank(spectra), 2),
    }
    lineage = Path(folder) / LINEAGE_FILE
    if lineage.is_file():
        record = json.loads(lineage.read_text(encoding="utf-8"))
        report["lineage"] = f"{record['operator']} of {', '.join(parent['path'] for parent in record['parents'])}"
    return report


def _mean_effective_rank(spectra: Iterable[torch.Tensor]) -> float:
    """Mean over modules of exp(entropy of the normalised singular values) (Roy and Vetterli 2007); 0 without update."""
    ranks = []
    for values in spectra:
        weights = values[values > 0] / values.sum()
        ranks.append(float(torch.exp(-(weights * weights.log()).sum())) if len(weights) else 0.0)
    return sum(ranks) / len(ranks)


def _check_same_base(folders: Sequence[str | os.PathLike], adapters: Sequence[PeftAdapter]) -> None:
    first = adapters[0].base_model_name
    for folder, adapter in zip(folders[1:], adapters[1:], strict=True):
        if adapter.base_model_name != first:
            raise ValueError(
                f"{folders[0]} was trained on {first or 'an unnamed base'}, {folder} on"
                f" {adapter.base_model_name or 'an unnamed base'}; parents must share one base model"
            )
        _check_same_modules(folders[0], adapters[0].weights, folder, adapter.weights)


def _check_same_modules(
    first: str | os.PathLike, one: AdapterWeights, second: str | os.PathLike, other: AdapterWeights
) -> None:
    difference = set(one.modules) ^ set(other.modules)
    if difference:
        example = min(difference)
        holder = first if example in one.modules else second
        raise ValueError(
            f"{first} and {second} adapt different modules: {len(difference)} are in one only, such as {example}"
            f" (in {holder})"
        )


def _track(description: str):
    console = Console(stderr=True)
    return lambda names: progress_bar(names, description=description, console=console, transient=True)


def _parameter(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verl_populora.evolve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, arity, default in (("mutate", 1, "spectral"), ("crossover", 2, "extrapolation")):
        command = commands.add_parser(
            name,
            help=f"one child of {arity} adapter(s)",
            epilog=_operator_help(arity),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("adapters", nargs=arity, metavar="ADAPTER_DIR", help="the fitter parent comes first")
        command.add_argument("--operator", default=default, help=f"name or short name (default: {default})")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="operator parameter")
        command.add_argument("--modules", help="regular expression of the modules to vary; others are inherited")
        command.add_argument("-o", "--out", required=True, metavar="OUT", help="folder of the child")
        command.add_argument("--quiet", action="store_true", help="no progress bar")
        command.set_defaults(run=_run_breed)
    for name, run, text in (
        ("distance", _run_distance, "pairwise cosine, distance and principal angles of the updates"),
        ("info", _run_info, "size, norm, effective rank and lineage"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("adapters", nargs="+", metavar="ADAPTER_DIR")
        command.add_argument("--json", action="store_true", help="one JSON document")
        command.set_defaults(run=run)
    return parser


def _operator_help(arity: int) -> str:
    short_names = {name: short for short, name in ALIASES.items()}
    lines = ["operators and their parameters:"]
    for name in operator_names(arity):
        params = ", ".join(f"{key}={value}" for key, value in operator_class(name)().params.items())
        lines.append(f"  {name} ({short_names.get(name, 'added')}): {params}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
