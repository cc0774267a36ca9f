import re

import pytest
import yaml
from omegaconf import OmegaConf

from azr_overrides.config import CONFIG_DIR
from recipes import configuration_reference as reference
from verl_populora.evolution.config import EvolutionConfig

ENTRIES = [
    entry
    for source in reference.SOURCES
    for entry in reference.entries(*source)
    # Lists, parameters of a named part, interpolations and free text are described in words.
    if entry.default and entry.default[0] not in "[{$" and entry.values not in ("path", "any", "text")
]
BOUND = re.compile(r"^(>=|>) (-?[\d.]+)$|^([\[(])([\d.]+), ([\d.]+)([\])])$")


def fits(value, values: str) -> bool:
    """Whether a default is one of the documented values; alternatives stand between bars, bounds are checked."""
    alternatives = [one.strip() for one in values.replace("true, false", "true | false").split(" | ")]
    shown = yaml.safe_dump(value, default_flow_style=True).partition("\n")[0].strip("'")
    if shown in alternatives:
        return True
    for bound in filter(None, map(BOUND.match, alternatives)):
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if bound[1]:
            return value >= float(bound[2]) if bound[1] == ">=" else value > float(bound[2])
        low, high = float(bound[4]), float(bound[5])
        return low <= value <= high and (value != low or bound[3] == "[") and (value != high or bound[6] == "]")
    return not all(re.fullmatch(r"[a-z_\d.-]+", one) or BOUND.match(one) for one in alternatives)


def test_the_page_is_what_the_configuration_says():
    assert reference.main(["--check"]) == 0


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.key)
def test_a_default_is_one_of_the_documented_values(entry):
    value = OmegaConf.create(f"it: {entry.default}").it  # as Hydra reads it: 1e-6 is a number
    assert fits(value, entry.values), f"{entry.default} is not among: {entry.values}"


def test_the_check_can_fail():
    assert not fits(0, ">= 1") and not fits(1.0, "(0, 1)") and not fits("x", "a | b") and fits(None, ">= 1 | null")


def test_a_key_without_a_meaning_or_without_values_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "CONFIG_DIR", tmp_path)
    (tmp_path / "one.yaml").write_text("# Meaning.\nfirst: 1  # >= 0\nsecond: 2  # >= 0\n")
    with pytest.raises(ValueError, match="one.yaml:3: second has no comment above it"):
        reference.entries("one.yaml")
    (tmp_path / "one.yaml").write_text("# Meaning.\nfirst: 1\n")
    with pytest.raises(ValueError, match="one.yaml:2: first has no comment behind it"):
        reference.entries("one.yaml")


def test_evolution_has_the_same_defaults_in_the_configuration_and_in_the_code():
    written = yaml.safe_load((CONFIG_DIR / "population" / "base.yaml").read_text())["evolution"]
    assert EvolutionConfig.from_mapping(written | {"selection_params": {}}) == EvolutionConfig()
