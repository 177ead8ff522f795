"""The sections of a configuration and their fields, as frozen values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trisect.config.names import ModelName, TaskName
from trisect.config.train import TrainOptions
from trisect.layout import Layout
from trisect.settings.section import Positive
from trisect.settings.synonyms import with_our_names


class Section(BaseModel):
    """A frozen section that refuses keys it does not know and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OpenSection(BaseModel):
    """A frozen section with options of its own (a generator's, a model's, a task's), which their owner checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def options(self) -> dict[str, Any]:
        """Give the options that are not fields of the section."""
        return dict(self.__pydantic_extra__ or {})


def _period(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError(f"is {value!r}, but must be a number of seconds above 0 or a text like 1d")


class SmoothingConfig(Section):
    """This says how a snapshot gathers edges of the snapshots before it.

    Attributes:
        kind: `edge-life` keeps an edge for `length` steps; `m-transform` averages over them as TM-GCN does.
        length: how many steps, the present one included.
        matrix: the weights of an `m-transform`: equal (`mean`), 1/k (`harmonic`), or ones.
    """

    kind: Literal["none", "edge-life", "m-transform"]
    length: Positive = 1
    matrix: Literal["mean", "harmonic", "ones"] = "mean"


class DataConfig(OpenSection):
    """Where the graph comes from: exactly one of `name`, `path` and `generate`. Further options belong to the source.
    Without a source, `vertices`, `edges` and more describe data that are not there; they can be planned, not trained.

    Attributes:
        object: in the run directory of `fit`, instead of a source: what was handed over, and the hash of its arrays.
        directory: where named data sets lie, unless the command line or TRISECT_DATA says so.
        period: how long a step of a timeline is.
        smoothing: how a snapshot gathers edges of the snapshots before it.
        edge_merge: what the features of edges between the same vertices become; by default their mean.
    """

    name: str | None = None
    path: str | None = None
    generate: str | None = None
    object: str | None = None
    directory: str | None = None
    period: Annotated[Any, AfterValidator(_period)] = None
    smoothing: SmoothingConfig | None = None
    edge_merge: Literal["sum", "mean", "last", "count"] | None = None

    @property
    def described(self) -> bool:
        """Say whether the data are described by their sizes, and not there."""
        has_source = any(getattr(self, key) is not None for key in ("name", "path", "generate"))
        return not has_source and {"vertices", "edges"} <= set(self.options)

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        sources = [key for key in ("name", "path", "generate") if getattr(self, key) is not None]
        if len(sources) + (self.object is not None) != 1 and not self.described:
            said = " and ".join(sources) if sources else "none of them"
            raise ValueError(f"needs exactly one of name, path and generate, and has {said}")
        return self


class ModelConfig(OpenSection):
    """Which model, how deep and how wide; further options belong to the model. None: the model's own default.

    In the run directory of `fit` it may be `custom`, with the model in words as `object`.
    """

    name: Literal[ModelName, "custom"]
    layers: Positive | None = None
    hidden: Positive | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_our_names(cls, given: Any) -> Any:
        return with_our_names(given) if isinstance(given, dict) else given


class TaskConfig(OpenSection):
    """What is learnt; further options belong to the task. In the run directory of `fit` it may be `custom`."""

    name: Literal[TaskName, "custom"]


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _or_auto(value: Any) -> Any:
    return {"auto": True} if value == "auto" else value


class Config(BaseModel):
    """The configuration of a run. `task` may be a bare name; `layout` may be `auto`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: DataConfig
    model: ModelConfig
    task: Annotated[TaskConfig, BeforeValidator(_by_name)]
    layout: Annotated[Layout, BeforeValidator(_or_auto)] = Layout()
    train: TrainOptions = TrainOptions()

    def resolved(self) -> dict[str, Any]:
        """Give every setting with its value, as plain data that `parse_config` reads back to an equal configuration."""
        plain = self.model_dump(mode="python")
        for section in ("data", "model"):
            plain[section] = {key: value for key, value in plain[section].items() if value is not None}
        plain["train"] = self.train.plain()
        plain["layout"] = "auto" if self.layout.auto else self.layout.plain()
        return plain
