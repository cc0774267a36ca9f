"""Who is evaluated: the base, a baseline and every member of a population, each by the hash of its weights."""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from eval.data.sources import file_digest
from eval.types import ModelKind, UsageError

BASE_NAME = "base"
BASELINE_NAME = "baseline"
UNIFORM_BASE_NAME = "base (uniform prompt)"
# What changes the function that an adapter computes, beyond its tensors.
_CONFIG_KEYS = (
    "r",
    "lora_alpha",
    "target_modules",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "use_dora",
    "bias",
)


@dataclass(frozen=True, slots=True)
class EvalMember:
    """One row of the result table."""

    name: str
    group: str  # "base", "baseline" or "population"
    kind: ModelKind
    adapter: str = ""  # PEFT folder; "" for the base itself
    adapter_sha256: str = ""
    rank: int = 0
    role: str = ""
    rating: tuple[float, float] | None = None  # (mu, sigma) at the checkpoint


def adapter_hash(folder: Path) -> tuple[str, int]:
    """(hash of weights and of the settings that matter, rank). Raises UsageError if it is no LoRA folder."""
    config_path, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    for path in (config_path, weights):
        if not path.exists():
            raise UsageError(f"{folder} is not an adapter: {path.name} is missing")
    config = json.loads(config_path.read_text())
    if config.get("peft_type") != "LORA":
        raise UsageError(
            f"{config_path}: peft_type is {config.get('peft_type')!r}; only LORA adapters can be evaluated"
        )
    settings = {key: sorted(value) if isinstance(value := config.get(key), list) else value for key in _CONFIG_KEYS}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(file_digest(weights, "sha256").encode())
    ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
    return digest.hexdigest(), max(ranks)


def named_adapter(argument: str, kind: ModelKind) -> EvalMember:
    """A member from ``NAME=DIR``."""
    name, separator, folder = argument.partition("=")
    if not separator or not name or not folder:
        raise UsageError(f"--adapter {argument!r}: expected NAME=DIR")
    return _member(name, "population", kind, Path(folder))


def newest_checkpoint(run: Path) -> Path:
    """``run`` itself if it holds a population.json, else its newest complete checkpoint."""
    if (run / "population.json").exists():
        return run
    steps = []
    for path in (run / "checkpoints").glob("step_*"):
        match = re.fullmatch(r"step_(\d+)", path.name)
        if match and (path / "population.json").exists():
            steps.append((int(match.group(1)), path))
    if not steps:
        raise UsageError(f"{run} holds neither population.json nor checkpoints/step_N/population.json")
    return max(steps)[1]


def population_members(run: Path, kind: ModelKind) -> list[EvalMember]:
    """Every member of a run's newest checkpoint, or of one checkpoint."""
    checkpoint = newest_checkpoint(run)
    path = checkpoint / "population.json"
    try:
        rows = json.loads(path.read_text())["members"]
        members = []
        for row in rows:
            member = _member(row["name"], "population", kind, checkpoint / row["adapter"])
            rating = row.get("rating")
            rating = (float(rating[0]), float(rating[1])) if rating else None
            members.append(replace(member, role=row.get("role", ""), rating=rating))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} is not a population record: {error!r}") from error
    if not members:
        raise UsageError(f"{path} lists no members")
    return members


def baseline_member(path: Path, kind: ModelKind) -> EvalMember:
    """The baseline from a PEFT folder, or from a single-agent run with exactly one member."""
    if (path / "adapter_config.json").exists():
        return _member(BASELINE_NAME, "baseline", kind, path)
    members = population_members(path, kind)
    if len(members) != 1:
        raise UsageError(f"--baseline {path} holds {len(members)} members; a baseline is one adapter")
    return replace(members[0], name=BASELINE_NAME, group="baseline")


def _member(name: str, group: str, kind: ModelKind, folder: Path) -> EvalMember:
    sha256, rank = adapter_hash(folder)
    return EvalMember(name, group, kind, str(folder.resolve()), sha256, rank)


def check_names(members: list[EvalMember]) -> None:
    """Raises UsageError if two rows would have the same name."""
    names = [member.name for member in members]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(f"member names are not unique: {', '.join(repeated)}; rename with --adapter NAME=DIR")


def base_revision(model: str, revision: str | None) -> str:
    """What identifies the base's weights: the commit of a hub model, or a hash over a folder's weight files."""
    folder = Path(model)
    if folder.is_dir():
        files = sorted(
            path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin") or path.name == "config.json"
        )
        if not any(path.suffix in (".safetensors", ".bin") for path in files):
            raise UsageError(f"--base {model}: the folder holds no .safetensors or .bin weights")
        digest = hashlib.sha256()
        for path in files:
            digest.update(f"{path.name}:{file_digest(path, 'sha256')}\n".encode())
        return f"sha256:{digest.hexdigest()}"
    from huggingface_hub import model_info
    from huggingface_hub.utils import HfHubHTTPError

    try:
        commit = model_info(model, revision=revision).sha
    except (OSError, HfHubHTTPError, ValueError) as error:
        raise UsageError(f"--base {model}: neither a folder nor a model on the hub ({error})") from error
    return f"hub:{commit}"
