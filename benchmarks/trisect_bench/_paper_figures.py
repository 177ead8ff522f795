"""What two papers measured, as data: GNNPipe's table and curves, and what the paper on dynamic graphs reports.

GNNPipe ("GNNPipe: Scaling Deep GNN Training with Pipelined Model Parallelism", arXiv 2308.10087): its authors' public
experiment logs (github.com/dreaming-panda/Mithril_MultiGPU, branch `dp`, folder `nsdi2023`: `overall_performance`,
`strong_scaling`, `various_model_depth`). Seconds are means over the seeds that were run; GiB are of one epoch, of all
GPUs together.

Dynamic graphs ("Efficient Scaling of Dynamic Graph Neural Networks", SC'21, arXiv 2109.07893): its abstract; there is
no public code. The sizes of its data are from public descriptions of the same data sets.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYOUTS = ("graph", "pipeline", "hybrid")


@dataclass(frozen=True)
class PaperGraph:
    """A graph of GNNPipe's table.

    Attributes:
        entries: of the matrix, self-loops included.
        halo: rows that all parts read of others, for each vertex, by the number of parts: from the logged bytes.
    """

    vertices: int
    entries: int
    features: int
    classes: int
    hidden: int
    halo: dict[int, float]


@dataclass(frozen=True)
class PaperRow:
    """A row of GNNPipe's table: seconds of an epoch and GiB, each for graph, pipeline and hybrid."""

    graph: str
    model: str
    seconds: tuple[float, float, float]
    gib: tuple[float, float, float]

    @property
    def winner(self) -> str:
        """Give the layout that is fastest."""
        return LAYOUTS[self.seconds.index(min(self.seconds))]


GRAPHS = {
    "squirrel": PaperGraph(5_201, 401_907, 2_089, 5, 1000, {2: 0.823, 8: 2.22}),
    "flickr": PaperGraph(89_250, 989_006, 500, 7, 100, {2: 0.843, 8: 2.15}),
    "reddit": PaperGraph(232_965, 114_848_857, 602, 41, 100, {2: 0.962, 8: 2.61}),
    "physics": PaperGraph(34_493, 530_417, 8_415, 5, 100, {2: 0.651, 8: 0.99}),
    "arxiv": PaperGraph(169_343, 2_484_941, 128, 40, 100, {2: 0.483, 8: 0.675}),
}

# 16 rows of the paper's table
ROWS = (
    PaperRow("squirrel", "gcn", (0.190, 0.081, 0.111), (4.427, 0.271, 1.376)),
    PaperRow("squirrel", "sage", (0.268, 0.147, 0.191), (6.101, 0.271, 1.615)),
    PaperRow("squirrel", "gcnii", (0.198, 0.108, 0.140), (4.531, 0.543, 1.507)),
    PaperRow("squirrel", "resgcn+", (0.269, 0.187, 0.241), (6.203, 0.271, 1.630)),
    PaperRow("flickr", "gcn", (0.156, 0.064, 0.090), (4.601, 0.465, 1.995)),
    PaperRow("flickr", "sage", (0.173, 0.104, 0.126), (4.620, 0.465, 1.998)),
    PaperRow("flickr", "gcnii", (0.166, 0.095, 0.116), (4.603, 0.931, 2.195)),
    PaperRow("flickr", "resgcn+", (0.186, 0.162, 0.187), (4.620, 0.465, 1.997)),
    PaperRow("reddit", "gcn", (0.874, 0.357, 0.392), (14.501, 1.215, 5.868)),
    PaperRow("reddit", "sage", (1.082, 0.533, 0.568), (14.520, 1.215, 5.870)),
    PaperRow("reddit", "gcnii", (0.902, 0.415, 0.449), (14.502, 2.430, 6.388)),
    PaperRow("reddit", "resgcn+", (0.934, 0.509, 0.546), (14.519, 1.215, 5.870)),
    PaperRow("physics", "gcn", (0.053, 0.066, 0.077), (0.876, 0.180, 0.620)),
    PaperRow("physics", "sage", (0.069, 0.132, 0.125), (0.935, 0.180, 0.629)),
    PaperRow("physics", "gcnii", (0.060, 0.108, 0.105), (0.877, 0.360, 0.698)),
    PaperRow("physics", "resgcn+", (0.080, 0.141, 0.153), (0.894, 0.180, 0.623)),
)
# in the logs and not in the table
MORE_ROWS = (
    PaperRow("arxiv", "gcn", (0.124, 0.102, 0.117), (2.742, 0.883, 2.333)),
    PaperRow("arxiv", "sage", (0.147, 0.139, 0.155), (2.758, 0.883, 2.336)),
    PaperRow("arxiv", "gcnii", (0.143, 0.142, 0.152), (2.743, 1.766, 2.712)),
    PaperRow("arxiv", "resgcn+", (0.191, 0.224, 0.230), (2.760, 0.883, 2.336)),
)

# Strong scaling, reddit GCN with 32 layers: seconds by the number of GPUs, and the halo that the logged bytes show.
STRONG_HALO = {2: 0.627, 4: 1.46, 8: 2.61, 16: 5.56}
STRONG = {
    "graph": {2: 1.219, 4: 0.934, 8: 0.849, 16: 0.854},
    "pipeline": {1: 1.922, 2: 1.107, 4: 0.598, 8: 0.352, 16: 0.256},
}

# Depth, GCNII on 8 GPUs: seconds by the number of layers.
DEPTH = {
    "squirrel": {
        "graph": {8: 0.052, 16: 0.098, 32: 0.194, 64: 0.382, 128: 0.754},
        "pipeline": {8: 0.048, 16: 0.068, 32: 0.109, 64: 0.186, 128: 0.341},
    },
    "flickr": {
        "graph": {8: 0.040, 16: 0.079, 32: 0.156, 64: 0.313, 128: 0.619},
        "pipeline": {8: 0.049, 16: 0.064, 32: 0.095, 64: 0.159, 128: 0.284},
    },
    "physics": {
        "graph": {8: 0.020, 16: 0.033, 32: 0.060, 64: 0.114, 128: 0.220},
        "pipeline": {8: 0.068, 16: 0.082, 32: 0.110, 64: 0.164, 128: 0.255},
    },
}


# AML-Sim, the one of its timelines that is generated, whose steps are known: vertices, edges of all steps, steps.
AML_VERTICES, AML_EDGES, AML_STEPS = 1_000_000, 124_000_000, 200
# "up to 30x on 128 GPUs"; graph difference takes transfer down by up to 4.1x, and the whole by up to 40 %
SPEEDUP, TRANSFER_RATIO, TOTAL_SAVED = 30.0, 4.1, 0.40
