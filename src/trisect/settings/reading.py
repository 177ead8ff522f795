"""`read_yaml` turns YAML text into plain data, and a mistake into one sentence."""

from __future__ import annotations

import re
from typing import Any

import yaml

from trisect.errors import ConfigError

_MOST_CHARACTERS = 4_000_000
_MOST_VALUES = 100_000


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
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"{source} has {len(text):,} characters; settings have at most {_MOST_CHARACTERS:,}.")
    loader = None
    try:
        loader = _Loader(text)  # refuses control characters at once
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > _MOST_VALUES:
            raise ConfigError(f"{source} stands for more than {_MOST_VALUES:,} values by its aliases; write them out.")
        return loader.construct_document(node)
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply, or in itself; write it flat.") from None
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        said = (str(error).splitlines() or [""])[0][:120]
        raise ConfigError(
            f"{source} holds a date or a number that cannot be read ({said}); quote it as text."
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or (str(error).splitlines() or ["it cannot be read"])[0]
        remedy = "; indent with spaces, not with tabs" if "'\\t'" in problem else ""
        raise ConfigError(f"{source} is not YAML: {problem[:200]}{where}{remedy}.") from None
    finally:
        if loader is not None:
            loader.dispose()


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node stands for, each alias counted anew; one inside itself recurses without end."""
    if id(node) not in sizes:
        inner = node.value if not isinstance(node, yaml.ScalarNode) else ()
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_expanded(part, sizes) for part in parts)
    return sizes[id(node)]
