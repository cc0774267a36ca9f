"""What the documentation points at exists."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "azr_overrides" / "README.md"])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(file), f"{target}: there is no such heading"


def test_every_page_is_in_the_index():
    index = set(LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    linked = {target.partition("#")[0] for target in index}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/numbers.md", "CONTRIBUTING.md"])
def test_named_files_and_modules_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:azr_overrides|verl_populora|eval|patches|recipes|tests)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    for test in re.findall(r"`(?:tests/)?(test_\w+\.py)`", text):
        assert (ROOT / "tests" / test).is_file(), test
    for module in re.findall(r"python -m ((?:azr_overrides|verl_populora|eval|patches|recipes|tests)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_picture_of_a_step_is_well_formed_and_reads_in_the_dark():
    picture = ROOT / "docs" / "step.svg"
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "prefers-color-scheme: dark" in picture.read_text(encoding="utf-8")
