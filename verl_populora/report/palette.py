"""Colours by name, for a light and a dark page.

Teachers are warm, students cool, so that the two roles read apart at a glance; the eight seats of a role
differ in hue. Runs and parts of a whole follow the colour-blind-safe set of Okabe and Ito (2008), adapted to
both backgrounds.
"""

import colorsys

# Hues of the first seats lie far apart, so that a small population reads well.
_HUE_ORDER = (0, 4, 2, 6, 1, 5, 3, 7)
_WARM, _COOL, _GREEN = (0.99, 1.14), (0.47, 0.78), (0.30, 0.42)  # ranges of hue, in turns
_SERIES = {
    # blue, vermilion, green, purple, amber, sky, olive, grey
    "light": ("#0b62a0", "#c4500a", "#00805e", "#a8518a", "#b07c00", "#3d97cc", "#6b7a1f", "#7d8189"),
    "dark": ("#5aa9e6", "#ff8f4d", "#3fc9a0", "#dd8fc2", "#e6b53c", "#8fd0f5", "#b8c95e", "#9aa0aa"),
}
_NAMED = {
    "light": {
        "teacher": "#b8420f",
        "student": "#14628a",
        "agent": "#2f7a3d",
        "proposer": "#b8420f",
        "neutral": "#777b84",
        "solved": "#9fc5d8",
        "mixed": "#14628a",
        "unsolved": "#c9772f",
        "win": "#14628a",
        "loss": "#b8420f",
        "draw": "#b9b6ae",
        "void": "#e2dfd7",
    },
    "dark": {
        "teacher": "#ff8f5a",
        "student": "#6dc0ea",
        "agent": "#7fcf8c",
        "proposer": "#ff8f5a",
        "neutral": "#9aa0aa",
        "solved": "#2f5d75",
        "mixed": "#6dc0ea",
        "unsolved": "#e09a55",
        "win": "#6dc0ea",
        "loss": "#ff8f5a",
        "draw": "#5b5f68",
        "void": "#33363d",
    },
}


def palette(theme: str) -> dict[str, str]:
    """Name -> ``#rrggbb`` for ``light`` or ``dark``."""
    lightness, saturation = (0.40, 0.70) if theme == "light" else (0.67, 0.65)
    colours = dict(_NAMED[theme])
    for role, (first, last) in (("teacher", _WARM), ("student", _COOL), ("agent", _GREEN)):
        for seat, place in enumerate(_HUE_ORDER, start=1):
            hue = first + (last - first) * place / (len(_HUE_ORDER) - 1)
            colours[f"{role}-{seat}"] = _hex(hue % 1.0, lightness, saturation)
    for number, colour in enumerate(_SERIES[theme], start=1):
        colours[f"run-{number}"] = colours[f"part-{number}"] = colour
    return colours


def css(theme: str) -> str:
    """Custom properties ``--c-<name>``."""
    return " ".join(f"--c-{name}: {value};" for name, value in palette(theme).items())


def _hex(hue: float, lightness: float, saturation: float) -> str:
    channels = colorsys.hls_to_rgb(hue, lightness, saturation)
    return "#" + "".join(f"{round(channel * 255):02x}" for channel in channels)
