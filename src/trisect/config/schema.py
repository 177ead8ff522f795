"""The sections of a configuration and their fields, as frozen values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trisect.layout import Layout, Temporal, Transport, Wire

ModelName = Literal[
    "gcn",
    "sage",
    "gcnii",
    "resgcn+",
    "gat",
    "gin",
    "cd-gcn",
    "wd-gcn",
    "evolvegcn-o",
    "evolvegcn-h",
    "tm-gcn",
    "recurrent",
]
TaskName = Literal["node-classification", "link-prediction", "edge-classification", "node-regression"]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A frozen section that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OpenSection(BaseModel):
    """A frozen section with options of its own (a generator's, a model's, a task's), which their owner checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def options(self) -> dict[str, Any]:
        """The keys beyond the named ones."""
        return dict(self.__pydantic_extra__ or {})


def _period(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError(f"is {value!r}, but must be a number of seconds above 0 or a text like 1d")


def _blocks(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError(f"is {value!r}, but must be a whole number of at least 1, or auto")


def _weight_decay(value: Any) -> Any:
    numbers = value.values() if isinstance(value, dict) and value.keys() <= {"conv", "dense"} else [value]
    for number in numbers:
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 <= number < float("inf"):
            raise ValueError(
                f"is {value!r}, but must be a number from 0, or a mapping of conv and dense to such numbers"
            )
    return value


class SmoothingConfig(Section):
    """How a snapshot gathers edges of the snapshots before it."""

    kind: Literal["none", "edge-life", "m-transform"]
    length: Positive = 1
    matrix: Literal["mean", "harmonic", "ones"] = "mean"


class DataConfig(OpenSection):
    """Where the graph comes from: exactly one of `name`, `path` and `generate`. Further options belong to the source.

    Attributes:
        directory: where named data sets lie, unless the command line or TRISECT_DATA says so.
        period: how long a step of a timeline is.
        smoothing: how a snapshot gathers edges of the snapshots before it.
    """

    name: str | None = None
    path: str | None = None
    generate: str | None = None
    directory: str | None = None
    period: Annotated[Any, AfterValidator(_period)] = None
    smoothing: SmoothingConfig | None = None

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        given = [key for key in ("name", "path", "generate") if getattr(self, key) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of name, path and generate, and has {said}")
        return self


class ModelConfig(OpenSection):
    """Which model, how deep and how wide; further options belong to the model. None: the model's own default."""

    name: ModelName
    layers: Positive | None = None
    hidden: Positive | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None


class TaskConfig(OpenSection):
    """What is learnt; further options belong to the task."""

    name: TaskName


class HistoryConfig(Section):
    """What a chunk reads of chunks that are not done yet: a preset, and what differs from it (None: nothing).

    Attributes:
        preset: `default`, `gnnpipe` (the paper's), or `exact`: no history at all.
        start: `exact`: the first epoch reads no history and fills the buffers; `zero`: they begin empty.
        period: history is fixed for so many epochs; 1: it is what the last epoch left.
        blend: the weight of what history was before, when an epoch's rows become history.
        shuffle: the order of chunks is drawn anew in each epoch.
        scale: factor of the gradient of rows that other chunks read fresh.
        refresh: before every so many epochs an exact pass forward fills the buffers; 0: never.
        guard: before every so many epochs the exact training loss is compared with the stale one; 0: never.
        margin: how far the exact loss may lie above the stale one, as a share of it.
    """

    preset: Literal["default", "gnnpipe", "exact"] = "default"
    start: Literal["exact", "zero"] | None = None
    period: Positive | None = None
    blend: Annotated[float, Field(ge=0, lt=1)] | None = None
    shuffle: bool | None = None
    scale: Annotated[float, Field(gt=0)] | None = None
    refresh: NotNegative | None = None
    guard: NotNegative | None = None
    margin: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _exact_has_no_parts(self) -> HistoryConfig:
        given = [key for key, value in self.plain().items() if key != "preset" and value is not None]
        if self.preset == "exact" and given:
            raise ValueError(f"is exact and has a {given[0]}; leave one of them out")
        return self

    def plain(self) -> dict[str, Any]:
        """What is set, by name."""
        return self.model_dump(exclude_none=True)


def _preset(value: Any) -> Any:
    return {"preset": value} if isinstance(value, str) else value


class LayoutConfig(Section):
    """The degrees of the three cuts and how each is carried out; `auto` leaves the choice to the planner.

    Attributes:
        blocks: how many blocks a timeline is cut into to save memory, or `auto`: as many as the free memory asks for.
        temporal: how state crosses ranks along time.
        transport: what carries rows between ranks of one host: shared memory where that is possible, or the network.
        partition: what cuts the vertices of a timeline: METIS, or Mt-KaHyPar on the hypergraph of its snapshots.
    """

    auto: bool = False
    time: Positive = 1
    layer: Positive = 1
    vertex: Positive = 1
    chunks: Positive = 1
    blocks: Annotated[Any, AfterValidator(_blocks)] = 1
    temporal: Temporal = "auto"
    history: Annotated[HistoryConfig, BeforeValidator(_preset)] = HistoryConfig()
    wire: Wire = "float32"
    transport: Transport = "auto"
    partition: Literal["metis", "hypergraph"] = "metis"

    def to_layout(self) -> Layout:
        """The value that is passed along."""
        return Layout(
            time=self.time,
            layer=self.layer,
            vertex=self.vertex,
            chunks=self.chunks,
            blocks=0 if self.blocks == "auto" else self.blocks,
            temporal=self.temporal,
            wire=self.wire,
            transport=self.transport,
        )


class TrainConfig(Section):
    """How long, how fast, how often, and on what.

    Attributes:
        weight_decay: one number, or one for spatial layers (`conv`) and one for all others (`dense`).
        lr_schedule: `cosine` falls to zero over the epochs, `plateau` halves after 10 evaluations without a best.
        clip: the largest norm of all gradients together, or None.
        patience: stop after so many evaluations without a better `monitor`, or None.
        monitor: the validation metric that decides which epoch is the best, or None for the task's own.
        order: whether vertices are reordered inside for locality, where it pays; never seen from outside.
        keep: how many of the last checkpoints stay, besides the best one.
        threads: threads of one process, or None for what torch takes.
        timeout: seconds that a rank waits for another before the run is ended.
    """

    epochs: Positive = 100
    lr: Annotated[float, Field(gt=0)] = 0.01
    optimiser: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: Annotated[Any, AfterValidator(_weight_decay)] = 0.0
    lr_schedule: Literal["none", "cosine", "plateau"] = "none"
    clip: Annotated[float, Field(gt=0)] | None = None
    seed: NotNegative = 0
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    device: str = "cpu"
    threads: Positive | None = None
    timeout: Annotated[float, Field(gt=0)] = 300.0
    order: Literal["auto", "none"] = "auto"
    eval_every: Positive = 1
    patience: Positive | None = None
    monitor: str | None = None
    checkpoint_every: Positive = 10
    keep: Positive = 2


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _or_auto(value: Any) -> Any:
    return {"auto": True} if value == "auto" else value


class Config(Section):
    """A whole run. `task` may be a bare name; `layout` may be `auto`."""

    data: DataConfig
    model: ModelConfig
    task: Annotated[TaskConfig, BeforeValidator(_by_name)]
    layout: Annotated[LayoutConfig, BeforeValidator(_or_auto)] = LayoutConfig()
    train: TrainConfig = TrainConfig()

    def resolved(self) -> dict[str, Any]:
        """Every setting with its value, as plain data that `parse_config` reads back to an equal configuration."""
        plain = self.model_dump(mode="python")
        for section in ("data", "model"):
            plain[section] = {key: value for key, value in plain[section].items() if value is not None}
        if self.layout.auto:
            plain["layout"] = "auto"
        else:
            del plain["layout"]["auto"]
            history = self.layout.history.plain()
            plain["layout"]["history"] = history if len(history) > 1 else history["preset"]
        return plain
