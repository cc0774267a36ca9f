"""Which template a profile uses for a benchmark and a model kind."""

from eval.data.registry import Benchmark
from eval.prompts import fixed, published
from eval.prompts.template import Template
from eval.types import Group, ModelKind, Profile, UsageError

TEMPLATES: dict[str, Template] = {
    value.name: value for module in (fixed, published) for value in vars(module).values() if isinstance(value, Template)
}

_FIXED = {
    ("math", ModelKind.BASE): fixed.MATH_BASE,
    ("math", ModelKind.CHAT): fixed.MATH_CHAT,
    ("math", ModelKind.AZR): fixed.MATH_AZR,
    ("code", ModelKind.BASE): fixed.CODE_BASE,
    ("code", ModelKind.CHAT): fixed.CODE_CHAT,
    ("code", ModelKind.AZR): fixed.CODE_AZR,
    ("lcb", ModelKind.BASE): fixed.LCB_BASE,
    ("lcb", ModelKind.CHAT): fixed.LCB_CHAT,
    ("lcb", ModelKind.AZR): fixed.LCB_AZR,
}
# AZR's evaluation asked base and AZR models alike through evalplus, which picks the chat form where the tokenizer has
# a chat template. LiveCodeBench was published for AZR models alone: other kinds get our own prompt there.
_PARITY = _FIXED | {
    ("math", ModelKind.BASE): published.QWEN_BOXED,
    ("math", ModelKind.CHAT): published.QWEN_MATH_COT,
    ("math", ModelKind.AZR): published.AZR,
    ("lcb", ModelKind.AZR): published.LCB_AZR,
}


def template_family(benchmark: Benchmark) -> str:
    if benchmark.group is Group.MATH:
        return "math"
    return "lcb" if benchmark.name == "livecodebench" else "code"


def choose_template(
    benchmark: Benchmark,
    kind: ModelKind,
    profile: Profile,
    has_chat_template: bool,
    overrides: dict[str, str],
) -> Template:
    """``overrides`` maps a family ("math", "code", "lcb") or a benchmark's name to a template's name."""
    family = template_family(benchmark)
    name = overrides.get(benchmark.name) or overrides.get(family)
    if name:
        if name not in TEMPLATES:
            raise UsageError(f"unknown prompt template {name!r}; choose from {', '.join(sorted(TEMPLATES))}")
        return TEMPLATES[name]
    if profile is Profile.PARITY and family == "code":
        if has_chat_template:
            return published.EVALPLUS_CHAT
        return published.EVALPLUS_MBPP if benchmark.name == "mbpp_plus" else published.EVALPLUS_HUMANEVAL
    return (_PARITY if profile is Profile.PARITY else _FIXED)[family, kind]
