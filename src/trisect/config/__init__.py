"""The configuration of a run: what may be set, how it is read from YAML, and what is said about a mistake."""

from trisect.config.load import apply_overrides, load_config, parse_config, parse_layout, read_yaml
from trisect.config.nearest import unknown_setting
from trisect.config.schema import (
    Config,
    DataConfig,
    LayoutConfig,
    ModelConfig,
    SmoothingConfig,
    TaskConfig,
    TrainConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "LayoutConfig",
    "ModelConfig",
    "SmoothingConfig",
    "TaskConfig",
    "TrainConfig",
    "apply_overrides",
    "load_config",
    "parse_config",
    "parse_layout",
    "read_yaml",
    "unknown_setting",
]
