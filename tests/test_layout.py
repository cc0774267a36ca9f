import pytest

from verl_populora.layout import PopulationLayout
from verl_populora.members import Role


def test_seats_come_in_the_order_of_their_adapter_ids():
    layout = PopulationLayout.build(2, 3)
    assert layout.seats == ("teacher1", "teacher2", "student1", "student2", "student3")
    assert layout.adapter_ids == (1, 2, 3, 4, 5)
    assert layout.with_role(Role.STUDENT) == ("student1", "student2", "student3")
    assert layout.seat_of(layout.id_of("student2")) == "student2"


def test_no_teachers_and_no_students_is_the_single_agent():
    assert PopulationLayout.build(0, 0).roles == (Role.AGENT,)


@pytest.mark.parametrize(("teachers", "students"), [(1, 0), (0, 2), (-1, 1)])
def test_a_population_needs_both_roles(teachers, students):
    with pytest.raises(ValueError, match="at least one teacher and one student"):
        PopulationLayout.build(teachers, students)


def test_the_adapter_id_that_verl_removes_at_each_sync_is_never_used():
    ids = PopulationLayout.build(70, 70).adapter_ids
    assert 123 not in ids
    assert len(set(ids)) == 140


def test_a_layout_survives_the_model_configuration():
    layout = PopulationLayout.build(1, 2)

    class ModelConfig:
        lora = {"population": layout.to_config()}

    assert PopulationLayout.from_model_config(ModelConfig) == layout


def test_a_model_configuration_without_population_says_how_to_start():
    class ModelConfig:
        lora = {"rank": 0}

    with pytest.raises(ValueError, match=r"azr_overrides\.main"):
        PopulationLayout.from_model_config(ModelConfig)


def test_a_guest_has_an_id_of_its_own_that_no_seat_has():
    layout = PopulationLayout.build(2, 2, guest=True)
    assert layout.guest_id == 5 and layout.slots == 5 and len(layout.seats) == 4
    assert PopulationLayout.build(61, 61, guest=True).guest_id == 124
    assert PopulationLayout.build(2, 2).slots == 4

    class ModelConfig:
        lora = {"population": layout.to_config()}

    assert PopulationLayout.from_model_config(ModelConfig) == layout
