"""The configuration of a run: what may be set, how it is read from YAML, and what is said about a mistake."""

from trisect.config.load import apply_overrides, load_config, parse_config
from trisect.config.schema import Config, DataConfig, ModelConfig, SmoothingConfig, TaskConfig
from trisect.config.train import TrainOptions
from trisect.layout import parse_layout
from trisect.settings.nearest import unknown_setting
from trisect.settings.reading import read_yaml

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "SmoothingConfig",
    "TaskConfig",
    "TrainOptions",
    "apply_overrides",
    "load_config",
    "parse_config",
    "parse_layout",
    "read_yaml",
    "unknown_setting",
]
