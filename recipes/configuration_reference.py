"""Write docs/configuration.md from the configuration itself: python -m recipes.configuration_reference [--check]

In azr_overrides/config/ the comment above a key says what it means, and the comment behind it which values it takes
(booleans need none). ``--check`` writes nothing and exits with 1 if the page is not up to date.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from azr_overrides.compat import ADAPTED, MOVED
from azr_overrides.config import CONFIG_DIR

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
SHOWN = "../azr_overrides/config"  # the same folder, from the page
# Files by the prefix that Hydra gives to their keys.
SOURCES = (("population/base.yaml", "population."), ("azr.yaml", ""), ("azr_trainer.yaml", ""))

INTRODUCTION = """# Configuration

Every key that is this project's, AZR's, or verl's with a default of ours; verl's other keys keep verl's defaults and
documentation. This page is made by `python -m recipes.configuration_reference` from the comments in
`azr_overrides/config/`: edit those.

Keys are given as `key=value` on the command line, in Hydra's grammar. `--dry-run` prints what a run would use. An
unknown key ends the run before it starts, and so do most values that can't work. What became of the keys of AZR's own
recipes is in [migrating.md](migrating.md).
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a configuration file."""

    key: str  # full, dotted
    default: str | None  # as written; None for a section, whose keys follow
    values: str  # which values it takes
    meaning: str

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]


def entries(file: str, prefix: str = "") -> list[Entry]:
    """All keys of a file below ``CONFIG_DIR``, in its order.

    Raises:
        ValueError: a key lacks its meaning or its values; the message names the line.
    """
    text = (CONFIG_DIR / file).read_text(encoding="utf-8")
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(root, prefix, text.splitlines(), file))


def _walk(mapping: yaml.MappingNode, prefix: str, lines: list[str], file: str) -> Iterator[Entry]:
    for name, value in mapping.value:
        if not prefix and name.value == "defaults":
            continue
        line = name.start_mark.line
        key, meaning = prefix + name.value, _above(lines, line)
        if not meaning:
            raise ValueError(f"{file}:{line + 1}: {key} has no comment above it that says what it means")
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield Entry(key, None, "", meaning)
            yield from _walk(value, key + ".", lines, file)
            continue
        default = _source(value, lines)
        values = _behind(lines[line]) or ("true, false" if default in ("true", "false") else "")
        if not values:
            raise ValueError(f"{file}:{line + 1}: {key} has no comment behind it that says which values it takes")
        yield Entry(key, default, values, meaning)


def _above(lines: list[str], line: int) -> str:
    """The block of comments right above a line, as one paragraph."""
    block: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        block.insert(0, lines[line].strip().lstrip("#").strip())
    return " ".join(block)


def _behind(line: str) -> str:
    return line.partition("  # ")[2].strip()


def _source(value: yaml.Node, lines: list[str]) -> str:
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column]
    assert isinstance(value, yaml.SequenceNode)
    return "[" + ", ".join(item.value for item in value.value) + "]"


def page() -> str:
    """The text of the reference."""
    parts = [INTRODUCTION]
    for file, prefix in SOURCES:
        found = entries(file, prefix)
        headings = {entry.key: entry.meaning for entry in found if entry.default is None}
        sections: dict[str, list[Entry]] = {}
        for entry in found:
            if entry.default is not None:
                sections.setdefault(entry.section, []).append(entry)
        for section, rows in sections.items():
            parts.append(f"## {section or 'the run'}\n")
            if section in headings:
                parts.append(headings[section] + "\n")
            parts.append("| key | default | values | meaning |\n|---|---|---|---|")
            parts += [
                f"| `{row.key}` | `{_cell(row.default or '')}` | {_cell(row.values)} | {_cell(row.meaning)} |"
                for row in rows
            ]
            parts.append("")
    parts.append(_populations())
    parts.append(_devices())
    parts.append(_recipes())
    return "\n".join(parts).rstrip() + "\n"


def _populations() -> str:
    lines = ["## population=\n", "What a named population sets.\n", "| name | sets |\n|---|---|"]
    for path in sorted((CONFIG_DIR / "population").glob("*.yaml")):
        if path.stem != "base":
            lines.append(f"| `{path.stem}` | {_settings(path, 'population.')} |")
    return "\n".join(lines) + "\n"


def _devices() -> str:
    names = sorted(path.stem for path in (CONFIG_DIR / "device").glob("*.yaml"))
    files = ", ".join(f"[`device={name}`]({SHOWN}/device/{name}.yaml)" for name in names)
    return f"## device=\n\nKeys of verl that depend on the device, with the reasons: {files}.\n"


def _recipes() -> str:
    lines = [
        "## Keys of AZR's recipes\n",
        "What becomes of those that mean something else today; a run says it, too. All others mean the same.\n",
        "| key in a recipe | here |\n|---|---|",
    ]
    rules = {**MOVED, **{key: (rule,) for key, rule in ADAPTED.items()}}
    for key, found in sorted(rules.items()):
        words = "; ".join(dict.fromkeys(_cell(rule.why) for rule in found))
        lines.append(f"| `{key}` | {words} |")
    return "\n".join(lines) + "\n"


def _settings(path: Path, prefix: str) -> str:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values.pop("defaults", None)
    return ", ".join(f"`{key}={_cell(value)}`" for key, value in _leaves(values, prefix))


def _leaves(node: dict, prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(argv).check
    text = page()
    if check:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not current:
            print(f"{PAGE} is not up to date: python -m recipes.configuration_reference", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
