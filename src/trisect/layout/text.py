"""Layouts as texts: `vertex=2,layer=2`, `chunks=8,history=gnnpipe,history.scale=1.0`, `auto`."""

from __future__ import annotations

from typing import Any

from trisect.errors import LayoutError
from trisect.layout.layout import Layout
from trisect.settings.reading import read_yaml


def parse_layout(text: str) -> Layout:
    """Give a layout from a text such as `vertex=2,layer=2`, or `auto`."""
    plain = layout_mapping(text)
    return Layout(auto=True) if isinstance(plain, str) else Layout(**plain)


def layout_mapping(text: str) -> dict[str, Any] | str:
    """`vertex=2,layer=2` as plain data for the section `layout`; `auto` stays `auto`."""
    if text.strip() == "auto":
        return "auto"
    settings: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (word.strip() for word in item.partition("="))
        if not equals or not value:
            raise LayoutError(f"The layout is {text!r}, but must look like vertex=2,layer=2 or be auto.")
        if key in settings:
            raise LayoutError(f"The layout is {text!r}, which gives {key} twice; give it once.")
        settings[key] = read_yaml(value, f"The layout's {key}")
    if not settings:
        raise LayoutError(f"The layout is {text!r}, but must look like vertex=2,layer=2 or be auto.")
    return _with_history(settings)


def layout_text(layout: Layout) -> str:
    """Give the settings that differ from those of one process, or `auto`."""
    if layout.auto:
        return "auto"
    usual, settings = Layout(), {}
    for name in layout.plain():
        value = getattr(layout, name)
        if value == getattr(usual, name):
            continue
        if name != "history" or isinstance(value, str):
            settings[name] = value
            continue
        parts = value.short()
        parts = {"preset": parts} if isinstance(parts, str) else parts
        if "preset" in parts:
            settings["history"] = parts["preset"]
        settings.update({f"history.{part}": number for part, number in parts.items() if part != "preset"})
    return ",".join(f"{name}={_scalar(value)}" for name, value in settings.items()) or "vertex=1"


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_history(settings: dict[str, Any]) -> dict[str, Any]:
    """`history.period=3` is a part of `history`, beside the name of a preset where that is given too."""
    parts = {key.partition(".")[2]: settings.pop(key) for key in list(settings) if key.startswith("history.")}
    if parts:
        base = settings.get("history", {})
        settings["history"] = {**({"preset": base} if isinstance(base, str) else base), **parts}
    return settings
