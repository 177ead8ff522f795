"""Write docs/reference.md: every option of a configuration and of the commands, from the code that reads them.

    python docs/reference.py            # writes the page
    python docs/reference.py --check    # says whether the page is as it would be written

An option without a meaning ends it with an error, so that the page cannot be incomplete.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from trisect.cli.app import app
from trisect.config.names import DYNAMIC_MODELS, MODELS
from trisect.config.schema import DataConfig, SmoothingConfig
from trisect.config.train import TrainOptions
from trisect.data.formats.npz import Options
from trisect.data.generators.generate import GENERATORS
from trisect.data.ingest.ingest import Table
from trisect.layout import Layout
from trisect.layout.history import History
from trisect.layout.layout import EXCHANGES
from trisect.nn.models.registry import DYNAMIC, STATIC, options
from trisect.tasks.registry import TASKS
from trisect.train.workloads import DescribedData

MISSING: list[str] = []
PAGE = Path(__file__).with_name("reference.md")

# Options that several models share are explained once.
MODEL_OPTIONS = {
    "layers": "How many graph layers. Linear layers in and out of some models come on top.",
    "hidden": "The width of the layers in between.",
    "dropout": "The share of elements that are set to zero in training, after each layer but the last.",
    "input_dropout": "The same for the features that the model reads.",
    "activation": "What follows each layer but the last.",
    "norm": "`layer` normalises each row after each layer. Batch norm would differ between cuts, and is not offered.",
    "residual": "Each layer adds its input, where the widths are equal.",
    "root_weight": "The vertex itself has a weight matrix of its own.",
    "alpha": "The share of the first layer's rows that every layer adds.",
    "lam": "How far layers leave the identity: layer l takes log(lam / l + 1) of its weights, and keeps the rest.",
    "final_norm": "Normalise the rows before the last linear layer.",
    "heads": "Attention heads; their outputs are laid side by side.",
    "out_heads": "Attention heads of the last layer; their outputs are averaged.",
    "negative_slope": "The slope of the leaky ReLU inside the attention, below zero.",
    "attention_dropout": "The share of attention weights that are set to zero in training.",
    "eps": "The weight of the vertex itself, beyond 1, beside the sum of its neighbours.",
    "train_eps": "Whether `eps` is learnt.",
    "mlp_norm": "`layer` normalises inside the two-layer perceptron.",
    "head": "A linear layer to the outputs follows the last layer.",
    "window": "How many steps, the present one included, are averaged along time.",
    "kind": "The weights of the window: equal (`mean`), 1/k (`harmonic`), or ones.",
    "spatial": "The graph layer of each step.",
    "temporal": "What runs along time, for each vertex.",
    "bases": "R-GCN: the weights of all relations are made of so many; without it each relation has its own.",
    "types": "R-GCN: the types of vertices with the widths of their features, each projected by a weight of its own: "
    "`author:334,paper:4231`.",
    "concat": "The temporal part's output is laid beside that of the graph layer.",
}
GENERATOR_OPTIONS = {
    "vertices": "How many vertices.",
    "steps": "How many steps the timeline has.",
    "degree": "Edges of a vertex, on average; in a timeline at each step.",
    "classes": "How many classes the labels have.",
    "features": "How many features a vertex has.",
    "signal": "How far the centres of the classes lie from the origin, in units of the noise.",
    "skew": "How unequal classes are: sizes fall as rank^-skew.",
    "seed": "The same seed gives the same data.",
}
DATA_OPTIONS = {
    "name": "A named data set, `NAME.npz` in the data directory.",
    "path": "A graph directory made by `trisect data ingest`, an npz archive, or a table.",
    "generate": "A generator of the list below.",
    "weighted": "`false` makes every edge count 1.",
}


def page() -> str:
    """Give the text of the page."""
    parts = [
        "# Every option",
        "This page is written by `docs/reference.py` from the code that reads the options, and a test compares both. "
        "The [guide](guide.md) explains what they are for.",
        "## `data`",
        "Exactly one of `name`, `path` and `generate`, or `vertices` and `edges` of data that are described.",
        _data(),
        "### `data` with `name`, or an npz `path`",
        _table(_fields(Options)),
        "### `data` with a table as `path`, and the keywords of `Graph.from_table` and `Timeline.from_table`",
        _table(_fields(Table)),
        "### `data` that are described, for `trisect plan` and `trisect check`",
        _table(_fields(DescribedData, leave_out=("length",))),
        "### `data.smoothing`",
        _table(_fields(SmoothingConfig)),
        *_generators(),
        "## `model`",
        *_models(),
        "## `task`",
        *_tasks(),
        "## `layout`",
        "The same names stand in the text of `--layout`: `--layout vertex=2,layer=2,chunks=8`.",
        _table(_fields(Layout)),
        "### `layout.history`",
        "`default`, `gnnpipe` or `exact`, or a mapping of these, with `preset` for what the others come from.",
        _table(_fields(History)),
        "## `train`",
        "`trisect.fit` takes the same names as keywords.",
        _table(_fields(TrainOptions)),
        "## Commands",
        *_commands(),
    ]
    return "\n\n".join(parts) + "\n"


def _data() -> str:
    rows = [(name, kind, default, DATA_OPTIONS.get(name, text)) for name, kind, default, text in _fields(DataConfig)]
    return _table([*rows, ("weighted", "true or false", "true", DATA_OPTIONS["weighted"])])


def _generators() -> Iterator[str]:
    for name, generator in GENERATORS.items():
        yield f"### `data.generate: {name}`"
        yield generator.description
        meanings = GENERATOR_OPTIONS | _meanings(generator.function)
        rows = []
        for key, argument in generator.arguments.items():
            rows.append((key, _kind(argument.type), _default(argument.default), meanings.get(key, "")))
        yield _table(rows)


def _models() -> Iterator[str]:
    yield "Where a default differs between models, the table of the model has it."
    used = {key: option for name in MODELS for key, option in options(name).items()}
    rows = []
    for key, option in used.items():
        kind = _words(option.allowed) if option.allowed else _kind(option.kind)
        rows.append((key, kind, "", MODEL_OPTIONS.get(key, "")))
    yield _table(rows, columns=(0, 1, 3))
    for name in MODELS:
        maker = (DYNAMIC if name in DYNAMIC_MODELS else STATIC)[name]
        yield f"### `model.name: {name}`"
        yield (inspect.getdoc(maker) or "").split("\n\n")[0].replace("\n", " ")
        yield ", ".join(f"`{key}: {_plain(option.default)}`" for key, option in options(name).items())


def _tasks() -> Iterator[str]:
    for name, task in TASKS.items():
        yield f"### `task.name: {name}`"
        yield (inspect.getdoc(task) or "").split("\n\n")[0].replace("\n", " ")
        yield _table(_fields(task))


def _commands() -> Iterator[str]:
    for words, command in _leaves(typer.main.get_command(app), ()):
        yield f"### `trisect {' '.join(words)}`"
        yield (command.help or "").strip().replace("\n", " ")
        rows = []
        for parameter in command.params:
            if parameter.name == "help":
                continue
            name = ", ".join(parameter.opts) if parameter.opts[0].startswith("-") else str(parameter.name).upper()
            default = "" if parameter.default in (None, False, ()) else f"`{_plain(parameter.default)}`"
            rows.append((name, "", default, getattr(parameter, "help", None) or ""))
        if rows:
            yield _table(rows, columns=(0, 2, 3))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give the commands that have none below them, with the words that call them."""
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _leaves(below, (*words, name))
    else:
        yield words, command


def _fields(owner: type, leave_out: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    """Give name, type, default and meaning of each field of a section."""
    meanings = _meanings(owner)
    hints = typing.get_type_hints(owner)
    fields: Mapping[str, Any]
    if dataclasses.is_dataclass(owner):
        fields = {field.name: _default_of(field) for field in dataclasses.fields(owner)}
    else:
        fields = {key: field.default for key, field in owner.model_fields.items()}  # type: ignore[attr-defined]
    rows = []
    for key, default in fields.items():
        if key in leave_out:
            continue
        kind = _words(EXCHANGES[key]) if key in EXCHANGES and owner is Layout else _kind(hints[key])
        rows.append((key, kind, _default(default), meanings.get(key, "")))
    return rows


def _default_of(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        default = field.default
        return getattr(default, "default", default) if type(default).__name__ == "FieldInfo" else default
    return dataclasses.MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()


def _meanings(owner: Any) -> dict[str, str]:
    """Read `name: meaning` of the section Attributes or Args of a docstring; `a, b: …` stands for both."""
    text = inspect.getdoc(owner) or ""
    section = re.search(r"^(?:Attributes|Args):\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    result = {}
    for entry in re.split(r"\n(?=    \S)", section.group(1).rstrip() if section else ""):
        name, colon, meaning = entry.strip().partition(": ")
        if colon:
            sentence = " ".join(meaning.split())
            sentence = sentence[0].upper() + sentence[1:]
            for each in name.split(", "):
                result[each] = sentence if sentence.endswith((".", "?")) else sentence + "."
    return result


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        return _words(arguments)
    if arguments and origin is not tuple and (origin is typing.Union or type(hint).__name__ == "UnionType"):
        kinds = dict.fromkeys(_kind(each) for each in arguments if each is not type(None))
        return " or ".join(kinds) + (", or null" if type(None) in arguments else "")
    simple = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "any", Path: "path"}
    if hint in simple:
        return simple[hint]
    if origin is not None:
        return "mapping" if "Mapping" in str(origin) or origin is dict else "list"
    return {"SmoothingConfig": "mapping", "History": "mapping"}.get(getattr(hint, "__name__", ""), "any")


def _words(values: Any) -> str:
    return ", ".join(f"`{_plain(value)}`" for value in values)


def _default(value: Any) -> str:
    if (
        value is dataclasses.MISSING
        or type(value).__name__ == "PydanticUndefinedType"
        or value is inspect.Parameter.empty
    ):
        return "needed"
    if isinstance(value, History):
        return "`default`"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value)


def _table(rows: list[tuple[str, str, str, str]], columns: tuple[int, ...] = (0, 1, 2, 3)) -> str:
    heads = ("option", "type", "default", "meaning")
    lines = ["| " + " | ".join(heads[column] for column in columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        if not row[3]:
            MISSING.append(f"{rows[0][0]}…: {row[0]}")
        cells = (f"`{row[0]}`", *row[1:])
        lines.append("| " + " | ".join(cells[column].replace("|", "\\|") for column in columns) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write the page, or compare it."""
    text = page()
    if MISSING:
        raise SystemExit(
            "these options have no meaning; write one in the docstring of their section: " + "; ".join(MISSING)
        )
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{PAGE.name} is not what docs/reference.py writes; run it")
        return
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
