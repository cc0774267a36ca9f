"""The population's training engine: real verl FSDP2 engine, real tiny base, one gloo process."""

# verl carries no types.
# pyright: reportAttributeAccessIssue=false

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("verl")

from tests.engine_setup import batch_of, make_engine, ppo_partial, sample  # noqa: E402
from verl_populora.engine.actor import NonFiniteWeights  # noqa: E402
from verl_populora.layout import PopulationLayout  # noqa: E402

MODEL = Path(__file__).parents[1] / "recipes" / "tiny_base" / "model"
SEATS = ("teacher1", "teacher2", "student1", "student2")


def snapshot(engine, seat):
    return {name: tensor.clone() for name, tensor in engine.export_member(seat).items()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def deviation(one, other, start):
    """|one - other| / |one - start| over all tensors: a rounding error as a share of what training moved."""
    difference = sum(float((one[name] - other[name]).square().sum()) for name in one)
    movement = sum(float((one[name] - start[name]).square().sum()) for name in one)
    return math.sqrt(difference / movement)


def train(engine, samples, steps=3, entropy_coeff=0.0, calculate_entropy=False, packed=False):
    for _ in range(steps):
        with engine.train_mode(disable_auto_offload=True):
            batch = batch_of(samples, calculate_entropy, packed)
            metrics = engine.train_batch(batch, ppo_partial(entropy_coeff))["metrics"]
    return metrics


SAMPLES = [
    sample(1, length=9, advantage=1.0),
    sample(1, length=21, advantage=-0.5),
    sample(2, length=5, advantage=0.7),
    sample(3, length=30, advantage=-1.0),
    sample(3, length=4, advantage=0.3),
    sample(3, length=12, advantage=2.0),
]


@pytest.mark.parametrize(
    ("optimizer", "lr", "tolerance"),
    [
        ("SGD", 0.01, 1e-4),  # linear in the gradient: float32 rounding of weights that move little
        ("AdamW", 1e-3, 1e-2),  # divides by the gradient's size, which makes rounding of near-zero entries visible
    ],
)
def test_training_together_equals_training_alone(optimizer, lr, tolerance):
    together = make_engine(MODEL, optimizer=optimizer, lr=lr)
    start = {seat: snapshot(together, seat) for seat in SEATS}
    train(together, SAMPLES)
    for adapter_id, seat in ((1, "teacher1"), (2, "teacher2"), (3, "student1")):
        alone = make_engine(MODEL, optimizer=optimizer, lr=lr)
        train(alone, [s for s in SAMPLES if s["adapter_id"] == adapter_id])
        assert deviation(snapshot(together, seat), snapshot(alone, seat), start[seat]) < tolerance


def log_probs(engine, samples, packed):
    """One tensor for each sample, in order."""
    with engine.eval_mode(disable_auto_offload=True):
        output = engine.infer_batch(batch_of(samples, packed=packed))
    return [tensor.clone() for tensor in output["model_output"]["log_probs"].unbind()]


def test_packed_sequences_do_not_see_each_other_under_sdpa():
    """The layout of the GPU with the attention that a machine without flash-attn has."""
    padded, packed = make_engine(MODEL), make_engine(MODEL, packed=True)
    assert packed.module.config._attn_implementation == "sdpa"
    start = {seat: snapshot(padded, seat) for seat in SEATS}
    train(padded, SAMPLES)
    train(packed, SAMPLES, packed=True)
    for seat in ("teacher1", "teacher2", "student1"):
        assert deviation(snapshot(packed, seat), snapshot(padded, seat), start[seat]) < 1e-2
    for seat in SEATS:
        packed.replace_member(seat, snapshot(padded, seat))
    expected, found = log_probs(padded, SAMPLES, packed=False), log_probs(packed, SAMPLES, packed=True)
    for one, other in zip(expected, found, strict=True):
        # The last token of a sample predicts the first of the next one: nobody reads it.
        assert torch.allclose(one[:-1], other[:-1], atol=1e-5)


def test_members_without_samples_are_bit_identical_and_keep_their_optimiser_state():
    engine = make_engine(MODEL)
    train(engine, [*SAMPLES, sample(4, length=6, advantage=1.0)], steps=1)
    weights, moments, version = (
        snapshot(engine, "student2"),
        engine.export_optimizer("student2"),
        engine.versions,
    )
    version = dict(version)
    train(engine, SAMPLES, steps=2)
    assert equal(weights, snapshot(engine, "student2"))
    assert equal(moments, engine.export_optimizer("student2"))
    assert engine.versions["student2"] == version["student2"]
    assert engine.versions["teacher1"] == version["teacher1"] + 2


def test_a_frozen_role_is_never_updated():
    engine = make_engine(MODEL, learning_rates={"teacher": 0.0})
    before = {seat: snapshot(engine, seat) for seat in SEATS}
    metrics = train(engine, SAMPLES, steps=2)
    assert equal(before["teacher1"], snapshot(engine, "teacher1"))
    assert engine.versions["teacher1"] == 0 and engine.export_optimizer("teacher1") == {}
    assert "member/teacher1/grad_norm" not in metrics
    assert not equal(before["student1"], snapshot(engine, "student1")) and engine.versions["student1"] == 2


def test_a_non_finite_gradient_skips_only_its_member():
    engine = make_engine(MODEL, optimizer="SGD", lr=0.01)
    before = {seat: snapshot(engine, seat) for seat in SEATS}
    poisoned = [*SAMPLES, sample(4, length=6, advantage=math.nan)]
    metrics = train(engine, poisoned, steps=1)
    assert metrics["member/student2/skipped_updates"] == [1.0]
    assert metrics["member/teacher1/skipped_updates"] == [0.0]
    assert equal(before["student2"], snapshot(engine, "student2"))
    assert engine.versions["student2"] == 0
    clean = make_engine(MODEL, optimizer="SGD", lr=0.01)
    train(clean, SAMPLES, steps=1)
    assert deviation(snapshot(engine, "teacher1"), snapshot(clean, "teacher1"), before["teacher1"]) < 1e-4


def test_equal_rewards_give_no_gradient_and_only_weight_decay_moves():
    engine = make_engine(MODEL, optimizer="SGD", lr=0.01)
    before = {seat: snapshot(engine, seat) for seat in SEATS}
    metrics = train(engine, [{**one, "advantage": 0.0} for one in SAMPLES], steps=1)
    assert metrics["member/student1/grad_norm"] == [0.0]
    assert metrics["member/student1/skipped_updates"] == [0.0]
    decay = 1 - 0.01 * engine.optimizer_config.weight_decay
    for seat in ("teacher1", "teacher2", "student1"):
        after = snapshot(engine, seat)
        assert all(torch.allclose(after[name], decay * tensor, rtol=1e-6) for name, tensor in before[seat].items())
    assert equal(before["student2"], snapshot(engine, "student2"))


def test_weights_that_become_nan_stop_the_training_by_name():
    engine = make_engine(MODEL, optimizer="SGD", learning_rates={"student": math.inf})
    with pytest.raises(NonFiniteWeights, match=r"gave student1 weights .* population\.learning_rates"):
        train(engine, SAMPLES, steps=1)


def test_only_changed_members_are_sent():
    engine = make_engine(MODEL)
    stream, description = engine.get_per_tensor_param(base_sync_done=True)
    assert {int(key.split("::")[0]) for key, _ in stream} == {1, 2, 3, 4}
    assert list(engine.get_per_tensor_param(base_sync_done=True)[0]) == []
    train(engine, SAMPLES, steps=1)
    stream, description = engine.get_per_tensor_param(base_sync_done=True)
    assert {int(key.split("::")[0]) for key, _ in stream} == {1, 2, 3}
    assert {i: d["version"] for i, d in description["population"].items()} == {1: 1, 2: 1, 3: 1, 4: 0}
    assert [r.version for r in engine.receipts()] == [1, 1, 1, 0]


def test_a_guest_is_sent_with_a_receipt_and_never_trained():
    engine = make_engine(MODEL, population=PopulationLayout.build(2, 2, guest=True).to_config())
    past = snapshot(engine, "student2")
    engine.set_guest(7, past)
    list(engine.get_per_tensor_param(base_sync_done=True)[0])
    assert {r.adapter_id: (r.seat, r.version) for r in engine.receipts()}[5] == ("guest", 7)
    train(engine, SAMPLES, steps=1)
    stream, description = engine.get_per_tensor_param(base_sync_done=True)
    assert 5 not in {int(key.split("::")[0]) for key, _ in stream}
    assert description["population"][5]["version"] == 7 and equal(engine.export_guest(), past)
    with pytest.raises(ValueError, match="samples name adapters"):
        train(engine, [sample(5, 6, 1.0)], steps=1)
    engine.set_guest(9, snapshot(engine, "student1"))
    stream, _ = engine.get_per_tensor_param(base_sync_done=True)
    assert {int(key.split("::")[0]) for key, _ in stream} == {5}
    with pytest.raises(ValueError, match="it is of another run"):
        engine.set_guest(10, {name: tensor[:1] for name, tensor in past.items()})


def test_the_base_is_never_sent():
    with pytest.raises(ValueError, match="load_format=safetensors"):
        make_engine(MODEL).get_per_tensor_param(base_sync_done=False)


def test_a_replaced_member_starts_with_fresh_optimiser_state_and_is_sent():
    engine = make_engine(MODEL)
    train(engine, SAMPLES, steps=1)
    list(engine.get_per_tensor_param(base_sync_done=True)[0])
    child = snapshot(engine, "student1")
    engine.replace_member("teacher1", child)
    assert equal(child, snapshot(engine, "teacher1"))
    assert engine.export_optimizer("teacher1") == {}
    assert {k.split("::")[0] for k, _ in engine.get_per_tensor_param(base_sync_done=True)[0]} == {"1"}


def test_a_resumed_engine_continues_like_an_uninterrupted_one():
    straight, first = make_engine(MODEL), make_engine(MODEL)
    train(straight, SAMPLES, steps=4)
    train(first, SAMPLES, steps=2)
    resumed = make_engine(MODEL, seed=99)
    for seat in SEATS:
        resumed.lora.load(seat, first.export_member(seat))
        resumed.load_optimizer(seat, first.export_optimizer(seat))
    train(resumed, SAMPLES, steps=2)
    for seat in SEATS:
        assert equal(snapshot(straight, seat), snapshot(resumed, seat))


def test_a_sample_of_an_unknown_adapter_is_refused():
    with pytest.raises(ValueError, match=r"adapters \[9\]"):
        train(make_engine(MODEL), [sample(9, length=5, advantage=1.0)], steps=1)


def test_roles_can_have_their_own_learning_rate():
    engine = make_engine(MODEL, learning_rates={"teacher": 1e-5, "student": None})
    rates = {group["seat"]: group["lr"] for group in engine.optimizer.param_groups}
    assert rates["teacher1"] == 1e-5
    assert rates["student1"] != 1e-5


def test_roles_can_have_their_own_entropy_bonus():
    """A role's own coefficient acts as verl's would on this role, and leaves the other alone."""
    settings = {"optimizer": "SGD", "lr": 0.01}
    start = make_engine(MODEL, **settings)
    before = {seat: snapshot(start, seat) for seat in SEATS}
    train(start, SAMPLES, steps=1)
    common = make_engine(MODEL, **settings)
    train(common, SAMPLES, steps=1, entropy_coeff=0.3, calculate_entropy=True)
    own = make_engine(MODEL, **settings, entropy_coeff={"teacher": 0.3, "student": None})
    train(own, SAMPLES, steps=1, calculate_entropy=True)
    assert deviation(snapshot(own, "teacher1"), snapshot(common, "teacher1"), before["teacher1"]) < 1e-4
    assert deviation(snapshot(own, "student1"), snapshot(start, "student1"), before["student1"]) < 1e-4
    assert deviation(snapshot(own, "teacher1"), snapshot(start, "teacher1"), before["teacher1"]) > 1e-2
    lower = make_engine(MODEL, **settings, entropy_coeff={"teacher": 0.0})
    train(lower, SAMPLES, steps=1, entropy_coeff=0.3, calculate_entropy=True)
    assert deviation(snapshot(lower, "teacher1"), snapshot(start, "teacher1"), before["teacher1"]) < 1e-4
    assert deviation(snapshot(lower, "student1"), snapshot(common, "student1"), before["student1"]) < 1e-4
    with pytest.raises(ValueError, match="calculate_entropy"):
        train(own, SAMPLES, steps=1)
