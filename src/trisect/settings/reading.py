"""`read_yaml` turns YAML text into plain data, and a mistake into one sentence."""

from __future__ import annotations

import re
from typing import Any

import yaml

from trisect.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """The safe loader, with numbers like 1e-3 read as numbers and a key given twice refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a point in a float, so that its "1e-3" is a text; everyone who writes it means the number
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(text: str, source: str) -> Any:
    """Give the plain data in `text`; `source` says in errors where it stood."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source} is not YAML: {problem}{where}.") from None
    finally:
        loader.dispose()
