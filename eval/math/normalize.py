"""One LaTeX answer to a plainer spelling of the same answer, so that equal answers parse to equal objects.

Every rule is here because the parser alone misreads the form: see ``docs/eval.md`` for the table.
"""

import re
from fractions import Fraction

from eval.extract import closing_brace

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ",
        "′": "'", "’": "'", "¢": r"\text{ cents}", "θ": r"\theta ", "½": r"\frac{1}{2}", "\u00a0": " ", "\u202f": r"\,",
    }
)  # fmt: skip
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NUMBER = r"[+-]?(?:\d[\d,]*\.?\d*|\.\d+)"
_WRAPPER = r"\\(?:text|mathrm|mbox|textrm|textbf|mathbf|operatorname|textit|rm|bf)"
_SPACE = r"(?:\s|~|(?<!\\)\\[,;:! ]|\\q?quad\b)"
_UNIT_GROUP = rf"(?:{_WRAPPER}\s*\{{[^{{}}\d]*\}}|\\(?:AA|degree|ohm|Omega)\b)"
_POWER = r"(?:\s*\^\s*(?:\{-?\d+\}|-?\d))?"
_UNIT_TAIL = re.compile(
    rf"(?P<value>.*[\d)\}}!])(?:{_SPACE})*{_UNIT_GROUP}{_POWER}"
    rf"(?:(?:{_SPACE}|/|\\cdot|\\times)*{_UNIT_GROUP}{_POWER})*{_SPACE}*\.?$",
    re.DOTALL,
)
_WORD_TAIL = re.compile(
    rf"(?P<value>{_NUMBER}|\\frac\{{\d+\}}\{{\d+\}}){_SPACE}+(?P<words>[A-Za-z]{{2,}}(?:[ /-][A-Za-z]+)*)\.?$"
)
_SCALE_TAIL = re.compile(rf"(?P<value>{_NUMBER}){_SPACE}*(?:{_WRAPPER}\s*\{{)?\s*(?P<scale>{'|'.join(_SCALES)})s?\b.*$")
_E_NOTATION = re.compile(r"(?<![\w.\\}])(?P<mantissa>\d+\.?\d*|\.\d+)[eE](?P<exponent>[+-]?\d+)(?![\w.^{])")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SUBSCRIPT_TEXT = re.compile(rf"_\s*\{{\s*{_WRAPPER}\s*\{{\s*([^{{}}]*?)\s*\}}\s*\}}")
_DERIVATIVE = re.compile(
    r"\\d?frac\s*\{\s*d\s*(?:\^\s*\{?(?P<order>\d)\}?)?\s*(?P<name>\\?[A-Za-z]+(?:_\{?\w+\}?)?)\s*\}\s*\{\s*d\s*[a-z]\s*(?:\^\s*\{?\d\}?)?\s*\}"
)
_DOT = re.compile(r"\\(?P<dots>d{1,2})ot\s*\{\s*(?P<name>\\?[A-Za-z]+)(?P<sub>_\{?\w+\}?)?\s*\}(?:\s*\([a-z]\))?")
_PRIME = re.compile(
    r"(?P<name>\\?[A-Za-z]+?)(?P<sub>_\{?\w+\}?)?\s*(?:\^\s*\{\s*(?P<caret>(?:\\prime\s*)+)\}|(?P<ticks>'+))(?:\s*\([a-z]\))?"
)


def is_percent(text: str) -> bool:
    return bool(re.search(r"\\?%|\\text\{\s*percent\s*\}|\bpercent\b", text))


def without_percent(text: str) -> str:
    return re.sub(r"\s*(?:\\?%|\\text\{\s*percent\s*\}|\bpercent\b)", "", text).strip()


def plain_number(text: str) -> Fraction | None:
    """The exact value of a decimal literal such as ``-1,234.50``; None for anything else."""
    compact = text.strip().rstrip(".").replace(r"\$", "")
    if _THOUSANDS.fullmatch(compact):
        compact = compact.replace(",", "")
    if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)", compact):
        return Fraction(compact)
    return None


def _unwrap_delimiters(text: str) -> str:
    text = text.strip()
    for opening, closing in (("\\[", "\\]"), ("\\(", "\\)"), ("$$", "$$"), ("$", "$")):
        inner = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) and opening not in inner:
            text = inner.strip()
    return re.sub(r"(?<!\\)\$", "", text)


def _code_to_latex(text: str) -> str:
    """Golds written as program text: ``np.arcsin(x)``, ``-1./3``, ``\\exp{a*t}``."""
    text = re.sub(r"\bnp\.(\w+)", r"\\\1", text)
    text = re.sub(r"(?<=\d)\.(?=\s*(?:/|\)|\}|$))", "", text)
    text = re.sub(r"(?<=[\w)])\s*\*\s*(?=[\w(\\])", " ", text)
    while (match := re.search(r"\\exp\s*\{", text)) is not None:
        end = closing_brace(text, match.end() - 1)
        if end < 0:
            break
        text = text[: match.start()] + "e^{" + text[match.end() : end] + "}" + text[end + 1 :]
    return text


def _unicode_roots(text: str) -> str:
    text = re.sub(r"√\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    return re.sub(r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text)


def _derivative_symbol(name: str, subscript: str | None, order: int) -> str:
    subscript = (subscript or "").strip("_{}")
    return f"{name}_{{{subscript}{'D' * order}}} "


def _derivatives(text: str) -> str:
    """Derivatives as symbols of their own, so that x', \\dot x and dx/dt are one thing."""

    def fraction(match: re.Match) -> str:
        name, _, subscript = match["name"].partition("_")
        return _derivative_symbol(name, subscript, int(match["order"] or 1))

    def prime(match: re.Match) -> str:
        order = match["caret"].count("prime") if match["caret"] else len(match["ticks"])
        return _derivative_symbol(match["name"], match["sub"], order)

    text = _DERIVATIVE.sub(fraction, text)
    text = _DOT.sub(lambda match: _derivative_symbol(match["name"], match["sub"], len(match["dots"])), text)
    return _PRIME.sub(prime, text)


def _scaled(text: str) -> str:
    match = _SCALE_TAIL.fullmatch(text)
    if not match:
        return text
    value = plain_number(match["value"])
    return text if value is None else str(value * 10 ** _SCALES[match["scale"]])


def _without_units(text: str) -> str:
    match = _UNIT_TAIL.fullmatch(text)
    if match:
        return match["value"].strip()
    match = _WORD_TAIL.fullmatch(text)
    if match and match["words"].split()[0] not in ("or", "and", "if", "mod"):
        return match["value"].strip()
    return text


def normalize(text: str) -> str:
    """The plain spelling of one answer. Percent signs, list separators and relations are left for the comparison."""
    text = _unwrap_delimiters(text.translate(_UNICODE))
    text = _unicode_roots(text).replace("{,}", ",").replace(r"\$", "")
    text = re.sub(r"(?<!\\)\\!\s*", "", text)
    text = re.sub(r"\\(?:displaystyle|left|right|big|Big|bigg|Bigg)(?![A-Za-z])", "", text)
    text = re.sub(r"\\(?:leqslant|leq)(?![A-Za-z])", r"\\le ", text)
    text = re.sub(r"\\(?:geqslant|geq)(?![A-Za-z])", r"\\ge ", text)
    text = re.sub(r"\\[td]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"\s*\\p?mod\s*\{[^{}]*\}|\s*\(\\mod\s*\d+\)", "", text)
    text = re.sub(r"(?<=\d)(?:\\,|\\ )(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))", "", text)
    text = re.sub(r"_(\w)(?!\w)", r"_{\1}", _SUBSCRIPT_TEXT.sub(r"_{\1}", text))
    text = _code_to_latex(text)
    text = text.strip().rstrip(".").strip()
    text = _without_units(_scaled(text))
    text = _E_NOTATION.sub(lambda m: rf"{m['mantissa']}\times 10^{{{int(m['exponent'])}}}", text)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return re.sub(rf"{_SPACE}+", " ", _derivatives(text)).strip()
