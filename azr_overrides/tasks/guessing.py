"""How often an answer that ignores a task's input would be right.

Self-play drifts to tasks such as ``return a % 3``: students solve them sometimes, by chance, so that they look
learnable for ever. A task's guess rate tells them from tasks of the same solve rate that have to be worked out.
"""

import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from azr_overrides.tasks.values import NotAValue, canonical, parse_value

_DRAWS = 4  # tries for each variation that is wanted: small values have few variations
_LETTERS = (string.ascii_lowercase, string.ascii_uppercase, string.digits)


@dataclass(frozen=True, slots=True)
class GuessRule:
    """``population.guessing``: whether guess rates are measured, and what they cost."""

    variations: int = 0  # inputs to run for each valid proposal; 0: guess rates are not measured
    discount: float = 0.0  # in [0, 1]

    def __post_init__(self) -> None:
        if self.variations < 0:
            raise ValueError(f"population.guessing.variations must not be negative, got {self.variations}")
        if not 0.0 <= self.discount <= 1.0:
            raise ValueError(f"population.guessing.discount must be in [0, 1], not {self.discount}")
        if self.discount > 0.0 and self.variations == 0:
            raise ValueError(
                "population.guessing.discount needs guess rates; set population.guessing.variations, for example to 8"
            )

    @classmethod
    def from_config(cls, config) -> "GuessRule":
        """From the composed configuration."""
        guessing = config.population.guessing
        return cls(int(guessing.variations), float(guessing.discount))

    def discounted(self, reward: float, guess_rate: float | None) -> float:
        """``reward * (1 - discount * guess_rate)`` where there is something to lose, else ``reward``."""
        if guess_rate is None or reward <= 0.0:
            return reward
        return reward * (1.0 - self.discount * guess_rate)


def varied_inputs(text: str, count: int, seed: str) -> tuple[str, ...]:
    """Up to ``count`` argument lists like ``text`` with other values, distinct; a pure function of its arguments.

    Types are kept, and so is the sign of numbers; lengths change by at most one, and what is empty stays empty. There
    are none where ``text`` is not a list of literals, or holds nothing that can vary.
    """
    try:
        arguments = parse_value(f"({text},)")
    except NotAValue:
        return ()
    assert isinstance(arguments, tuple)
    rng = Random(seed)
    own = _as_text(arguments)
    found: dict[str, None] = {}
    for _ in range(_DRAWS * count):
        varied = _as_text([_vary(value, rng) for value in arguments])
        if varied != own:
            found[varied] = None
        if len(found) == count:
            break
    return tuple(found)


def commonest_share(shown: Sequence[str], hidden: Sequence[str]) -> float:
    """Share of ``hidden`` equal to the commonest of ``shown`` (of several: the first), as a constant would score."""
    if not shown or not hidden:
        return 0.0
    guess = Counter(shown).most_common(1)[0][0]
    return sum(output == guess for output in hidden) / len(hidden)


def _as_text(arguments: Sequence[object]) -> str:
    return ", ".join(canonical(value) for value in arguments)


def _vary(value: object, rng: Random) -> object:
    match value:
        case bool():
            return rng.random() < 0.5
        case int():
            size = rng.randint(0, max(9, 2 * abs(value)))
            return -size if value < 0 else size
        case float():
            return round(value * rng.uniform(0.25, 2.0) + (value == 0.0) * rng.random(), 3)
        case str():
            return "".join(_vary_characters(value, rng))
        case list() | tuple():
            return type(value)(_vary(item, rng) for item in _resized(value, rng))
        case dict():
            return {key: _vary(item, rng) for key, item in value.items()}
        case set() | frozenset():
            return type(value)(_vary(item, rng) for item in value)
        case _:
            return value  # None, bytes, complex


def _vary_characters(text: str, rng: Random) -> Iterator[str]:
    for character in _resized(text, rng):
        alphabet = next((letters for letters in _LETTERS if character in letters), character)
        # Half of the characters stay, so that what a program looks for is still there sometimes.
        yield character if rng.random() < 0.5 else rng.choice(alphabet)


def _resized(items: Sequence, rng: Random) -> list:
    """A list of ``items`` with one of them left out, as they are, or with one of them twice."""
    resized = list(items)
    change = rng.choice((-1, 0, 1)) if resized else 0
    position = rng.randrange(len(resized)) if resized else 0
    if change < 0 and len(resized) > 1:
        del resized[position]
    elif change > 0:
        resized.insert(position, resized[position])
    return resized
