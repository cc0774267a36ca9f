import pytest

from eval.extract import answer_block, code_block, final_answer, last_box


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4} no, \boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"first \boxed{7}, then an open \boxed{8", "7"),
        (r"\boxed{\boxed{809}}", "809"),
        (r"\fbox{x}", "x"),
        (r"\boxed 9.", "9"),
        ("no box", None),
    ],
)
def test_last_box_is_the_last_complete_one(text, answer):
    assert last_box(text) == answer


def test_a_box_in_the_answer_block_beats_boxes_in_the_thinking():
    assert final_answer(r"<think> \boxed{1} </think> <answer> it is \boxed{2} </answer> \boxed{3}") == "2"


def test_an_unclosed_answer_block_reaches_to_the_end():
    assert answer_block("<answer> 12") == "12"


def test_an_answer_block_without_a_box_is_the_answer():
    assert final_answer("<think>x</think><answer> 17 </answer>") == "17"


def test_a_stated_answer_is_found_without_tags_and_boxes():
    assert final_answer("Adding up.\nThe final answer is: 42.") == "42"
    assert final_answer("9 + 9 = 18\n#### 18") == "18"


def test_nothing_is_made_up():
    assert final_answer("I do not know, maybe 7 or 8") is None


def test_code_block_takes_the_last_python_fence_of_the_answer():
    text = "<think>```python\nbad\n```</think><answer>\n```\ntext\n```\n```python\ngood = 1\n```\n</answer>"
    assert code_block(text) == "good = 1\n"


def test_code_block_takes_an_unclosed_fence():
    assert code_block("Here:\n```python\nx = 1\n") == "x = 1\n"
