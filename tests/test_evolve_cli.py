"""Operators on adapter folders from the command line."""

import json

import pytest
import torch

from tests.test_operators import adapter, dense
from verl_populora.adapters.peft_io import read_peft, write_peft
from verl_populora.adapters.weights import AdapterWeights
from verl_populora.evolution import make_operator
from verl_populora.evolve import main


@pytest.fixture
def folders(tmp_path):
    extra = {"target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.1}
    for name, seed in (("one", 1), ("two", 2)):
        write_peft(tmp_path / name, adapter(seed), "some/base", extra, {"trained_by": "me"})
    return tmp_path


def test_mutation_writes_a_child_with_config_metadata_and_lineage(folders, capsys):
    out = folders / "child"
    arguments = ["mutate", str(folders / "one"), "--operator", "m1", "--seed", "7", "--set", "epsilon=0.2"]
    assert main([*arguments, "--modules", "q_proj", "-o", str(out)]) == 0
    child, parent = read_peft(out), read_peft(folders / "one")
    expected = make_operator("spectral", epsilon=0.2, modules="q_proj")([parent.weights], 7)
    for name, module in expected.modules.items():
        assert torch.equal(child.weights.modules[name].a, module.a)
        assert torch.equal(child.weights.modules[name].b, module.b)
    assert child.config == parent.config and child.metadata == parent.metadata
    lineage = json.loads((out / "lineage.json").read_text())
    assert lineage["operator"] == "spectral" and lineage["seed"] == 7
    assert make_operator(lineage["operator"], **lineage["params"]) == make_operator("m1", epsilon=0.2, modules="q_proj")
    assert [len(one["sha256"]) for one in lineage["parents"]] == [64]
    assert f"wrote {out}" in capsys.readouterr().out


def test_crossover_takes_the_fitter_parent_first(folders):
    out = folders / "child"
    arguments = ["crossover", str(folders / "one"), str(folders / "two"), "--operator", "x4", "--quiet"]
    assert main([*arguments, "--set", "eta_min=1", "--set", "eta_max=1", "-o", str(out)]) == 0
    parent = read_peft(folders / "one").weights
    for name, module in read_peft(out).weights.modules.items():
        assert torch.allclose(dense(module), dense(parent.modules[name]), atol=1e-5)


def test_an_existing_adapter_is_not_overwritten(folders, capsys):
    assert main(["mutate", str(folders / "one"), "-o", str(folders / "two")]) == 2
    assert "already holds an adapter" in capsys.readouterr().err
    for name, module in read_peft(folders / "two").weights.modules.items():
        assert torch.equal(module.b, adapter(2).modules[name].b)


def test_parents_that_do_not_fit_are_refused_before_anything_is_written(folders, capsys):
    out = folders / "child"
    write_peft(folders / "foreign", adapter(3), "other/base")
    fewer = {name: module for name, module in adapter(3).modules.items() if "layers.2" not in name}
    write_peft(folders / "fewer", AdapterWeights(fewer, 4, 8.0), "some/base")
    for other, message in (
        ("foreign", "parents must share one base model"),
        ("fewer", "adapt different modules"),
        ("missing", "has no adapter_config.json"),
    ):
        code = main(["crossover", str(folders / "one"), str(folders / other), "-o", str(out), "--quiet"])
        assert code == 2
        assert message in capsys.readouterr().err
    for arguments, message in (
        (["--operator", "m9"], "unknown operator"),
        (["--operator", "x2"], "takes 2 parent"),
        (["--set", "epsilon"], "NAME=VALUE"),
        (["--set", "epsilon=-1"], "epsilon must not be negative"),
        (["--modules", "k_proj"], "matches none"),
    ):
        assert main(["mutate", str(folders / "one"), "-o", str(out), "--quiet", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not out.exists()


def test_distance_reports_pairs_and_collapse(folders, capsys):
    assert main(["distance", str(folders / "one"), str(folders / "two"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["pairs"]) == 1 and abs(report["pairs"][0]["cosine"]) < 0.2
    assert report["collapsed"] is False
    write_peft(folders / "copy", adapter(1), "some/base")
    assert main(["distance", str(folders / "one"), str(folders / "copy")]) == 0
    output = capsys.readouterr().out
    assert "cosine +1.000000" in output and "copies of one another" in output
    assert main(["distance", str(folders / "one")]) == 2


def test_info_describes_adapters_and_their_lineage(folders, capsys):
    main(["mutate", str(folders / "one"), "-o", str(folders / "child"), "--quiet"])
    capsys.readouterr()
    assert main(["info", str(folders / "one"), str(folders / "child"), "--json"]) == 0
    parent, child = json.loads(capsys.readouterr().out)
    assert (parent["base"], parent["modules"], parent["rank"], parent["alpha"]) == ("some/base", 6, 4, 8.0)
    assert parent["parameters"] == 3 * 4 * (48 + 40 + 40 + 96) and parent["dtype"] == "float32"
    norm = sum(float(dense(module).square().sum()) for module in adapter(1).modules.values()) ** 0.5
    assert parent["update norm"] == pytest.approx(norm, rel=1e-4)
    assert 1.0 < parent["effective rank"] <= 4.0
    assert "lineage" not in parent and child["lineage"].startswith("spectral of ")
    assert main(["info", str(folders / "child")]) == 0
    assert "effective rank" in capsys.readouterr().out


def test_help_lists_operators_with_their_parameters(capsys):
    with pytest.raises(SystemExit) as exit_code:
        main(["mutate", "--help"])
    assert exit_code.value.code == 0
    output = capsys.readouterr().out
    assert "spectral (m1)" in output and "epsilon=0.1" in output and "dare" not in output
