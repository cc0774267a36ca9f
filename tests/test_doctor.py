"""The doctor reports what is there, and never breaks down itself."""

import json
import subprocess

import pytest

from verl_populora import doctor
from verl_populora.doctor import Finding, Place, Status


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "runs" / "new", None)


@pytest.mark.slow
def test_this_environment_is_healthy(tmp_path, capsys):
    code = doctor.main(["--json", "--run-dir", str(tmp_path)])
    report = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in report["checks"]}
    assert code == 0 and report["ok"], [check for check in report["checks"] if check["status"] == "fail"]
    assert {"python", "torch", "verl", "peft", "sandbox", "verl surface", "run directory"} <= set(found)
    assert found["verl"]["detail"] == "0.9.1"
    assert "level" in found["sandbox"]["detail"]


def test_a_check_that_raises_is_a_failure_and_the_others_still_run(place):
    def broken(place):
        raise RuntimeError("no such thing")

    findings = doctor.examine(place, {"broken": broken, "run directory": doctor.check_run_dir})
    assert findings[0].status is Status.FAIL and "RuntimeError: no such thing" in findings[0].detail
    assert findings[1].name == "run directory"


def test_one_failure_is_the_exit_code_and_every_problem_has_a_fix(monkeypatch, capsys):
    bad = Finding("torch", Status.FAIL, "not installed", "pip install it")
    monkeypatch.setattr(doctor, "CHECKS", {"torch": lambda place: [bad]})
    assert doctor.main([]) == 1
    assert capsys.readouterr().out == "fail  torch           not installed  -> pip install it\n"
    monkeypatch.setattr(doctor, "CHECKS", {"torch": lambda place: [Finding("torch", Status.WARN, "old", "renew it")]})
    assert doctor.main([]) == 0


def test_other_versions_are_told(tmp_path):
    file = tmp_path / "requirements-cpu.in"
    assert doctor._compare("torch", "1.0.0", file).status is Status.WARN
    missing = doctor._compare("no-such-package-here", "1.0.0", file)
    assert missing.status is Status.FAIL and missing.fix == "pip install -r requirements-cpu.txt"


def test_a_run_directory_below_a_file_fails(tmp_path):
    (tmp_path / "file").write_text("")
    (finding,) = doctor.check_run_dir(Place(tmp_path / "file" / "run", None))
    assert finding.status is Status.FAIL and "another place" in finding.fix


def test_an_upstream_checkout_is_told_with_its_commit(tmp_path):
    (tmp_path / "absolute_zero_reasoner").mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (finding,) = doctor.check_azr(Place(tmp_path, tmp_path))
    assert finding.status is Status.WARN and head in finding.detail
    (finding,) = doctor.check_azr(Place(tmp_path, tmp_path / "absolute_zero_reasoner"))
    assert finding.status is Status.FAIL


def test_a_gpu_without_flash_attention_is_warned_of(monkeypatch, place):
    assert doctor.check_attention(place) == []
    monkeypatch.setattr(doctor, "_device", lambda: "cuda")
    (found,) = doctor.check_attention(place)
    assert found.status is Status.WARN and "sdpa" in found.fix
