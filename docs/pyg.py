"""Write docs/pyg.md: which models and convolutions of PyG are cut as they stand, from the lists of the tests.

python docs/pyg.py            # writes the page
python docs/pyg.py --check    # says whether the page is as it would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("pyg.md")
_TESTS = Path(__file__).parents[1] / "tests" / "nn" / "pyg"
_VARIANTS = {"edge_weight": "`edge_weight`", "edge_attr": "`edge_attr`"}

TEXT = """# PyG models as they stand

This page is written by `docs/pyg.py` from the lists that `tests/nn/pyg` goes through, and a test compares both.

`trisect.parallelize(model, data, layout="vertex=4")` takes a module whose `forward(x, edge_index, …)` calls PyG. It runs as it is
written, on the own rows of each rank; what it wants of other rows is asked of the view ([your own loop](loop.md#a-pyg-model)):

| in your forward | becomes |
|---|---|
| rows indexed by the sources of edges (`x_j`, `deg[row]`, …) | the rows are gathered from their ranks; once where a tensor is read twice |
| sums by the sources of edges | each rank adds up its share, and owners add up the shares |
| sum, mean, variance, standard deviation over the rows; `global_add_pool`, `global_mean_pool`; a scatter of rows by `batch` | a sum over all ranks |
| `F.batch_norm`, `F.instance_norm`, in any module | statistics of all rows, or of all edges where messages are normed; running ones too |
| `F.dropout`, in any module | dropout by place: by vertex, or by the two vertices of an edge |
| all else | runs as it is written |

## What forward is given

By the names of its arguments: `x`, `edge_index`, `edge_weight` (where the data have weights), `edge_attr` (where edges have features) and
`batch` (zeros, where it has no default). Another argument needs a default. The output has a row for each vertex.

## What happens to your module

It is not changed: what runs is a second object for each of its modules, which shares parameters and buffers. So your own module is
trained, running statistics included, and works with plain PyG afterwards; with `precision="float64"` its parameters are of that type.
`part.state_dict()` has your names. Attributes that a forward sets (cached edges, a counter) stay in the second object.

## Kernels

Where all convolutions of a module are {native} with default options (GCN's normalisation and loops; GAT without dropout and
features of edges; SAGE with sums or means, without projection), read one kind of matrix, and `edge_index` goes nowhere else, they are
done by the kernels of this library, in one process and on cut ranks, where that gives the same on a small graph.

## What is refused

Before the first step a small graph is run whole and in two parts. A module whose rows then differ is refused in one sentence with its
name: attention over all vertices, an order of neighbours, a maximum over all vertices, `x.size(0)` as the number of all vertices.
Random numbers that `forward` draws itself (`torch.rand`, `dropout_edge`) are refused too. A cut by layer needs a list of layers, and
chunks have none to go through: leave both out, or wrap single convolutions by `FromPyG`.

## Convolutions

{passing} of these, each on one, two and three ranks, have the gradients of plain PyG to 1e-10 in float64:

{table}

Not cut: {refused}.
Not tried here, since PyG itself needs packages of kernels for them: {untried}.
`RGCNConv`, `FastRGCNConv` and `RGATConv` are tried with edges of one type. `SuperGATConv` is cut; its attention loss, which samples
edges, is that of a rank's own edges.

## Models and norms

Likewise: {models}.
With dropout, three steps on two and three ranks are those of one: {chancy}.

## FromPyG

`trisect.nn.FromPyG(conv)` makes a convolution a layer of `trisect.nn`, for `fit`, cuts by layer and chunks. One that takes bipartite input
is called for some rows at a time; any other as `conv(x, edge_index)`, in the way of this page. On a timeline the latter is for
`GCNConv` alone, by the matrix that the model prepares.
"""  # noqa: E501


def page() -> str:
    """Return the text of the page."""
    sys.path.insert(0, str(_TESTS))
    import models  # type: ignore[import-not-found]
    import zoo  # type: ignore[import-not-found]

    from trisect.nn.pyg.native import NATIVE

    kinds = _kinds(zoo.PASSING)
    rows = ["| convolution | also with |", "|---|---|"]
    rows += [f"| `{name}` | {', '.join(sorted(with_)) or '–'} |" for name, with_ in sorted(kinds.items())]
    return TEXT.format(
        native=", ".join(f"`{name}`" for name in NATIVE),
        passing=len(kinds),
        table="\n".join(rows),
        refused="; ".join(f"`{name}` ({why})" for name, (_, why) in zoo.REFUSED.items()),
        untried=", ".join(f"`{name}` ({why.removeprefix('needs ')})" for name, why in zoo.UNTRIED.items()),
        models=", ".join(f"`{name}`" for name in models.MODELS),
        chancy=", ".join(f"`{name}`" for name in models.CHANCY),
    )


def _kinds(names: Iterable[str]) -> dict[str, set[str]]:
    """Return the convolutions by name, each with the options that it was tried with."""
    kinds: dict[str, set[str]] = {}
    for name in names:
        kind, _, option = name.partition("(")
        found: Any = kinds.setdefault(kind, set())
        if option:
            option = option.removesuffix(")")
            found.add(_VARIANTS.get(option, option))
    return kinds


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else f"{PAGE} is old; run python docs/pyg.py")
    PAGE.write_text(page(), encoding="utf-8")
