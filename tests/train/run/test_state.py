"""A checkpoint that does not fit is refused in one sentence that names the tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trisect.errors import CheckpointError
from trisect.train.run.state import require_state

PARAMETERS = {"model.layers.0.weight": (4, 3), "model.layers.1.weight": (3, 2), "decoder.bias": (2,)}
Shapes = dict[str, tuple[int, ...]]


def sound() -> Shapes:
    found: Shapes = {}
    for prefix in ("", "best.", "good."):
        found.update({prefix + name: shape for name, shape in PARAMETERS.items()})
    for prefix in ("optimiser.", "good.optimiser."):
        # the decoder was never trained
        for name in list(PARAMETERS)[:2]:
            found[f"{prefix}step.{name}"] = ()
            found[f"{prefix}exp_avg.{name}"] = PARAMETERS[name]
    found["program.layer=2,vertex=1,chunks=4.rank-1.history.0"] = (20, 3)
    return found


def without(name: str) -> Callable[[Shapes], None]:
    return lambda found: found.__delitem__(name)


def with_(name: str, shape: tuple[int, ...] = (9,)) -> Callable[[Shapes], None]:
    return lambda found: found.__setitem__(name, shape)


def test_a_sound_one_is_taken() -> None:
    require_state(sound(), PARAMETERS, "It", complete=True)
    own = {name: shape for name, shape in PARAMETERS.items() if "1" in name}
    require_state(sound(), own, "It", complete=False)
    plain = {name: shape for name, shape in sound().items() if name in PARAMETERS}
    require_state(plain, PARAMETERS, "It", complete=True)  # before the first evaluation, without momentum


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without("model.layers.1.weight"), "no tensor 'model.layers.1.weight'"),
        (without("best.decoder.bias"), "no tensor 'best.decoder.bias'"),
        (without("good.model.layers.0.weight"), "no tensor 'good.model.layers.0.weight'"),
        (with_("model.layers.0.weight"), r"'model.layers.0.weight' of shape \[9\], and the model needs \[4, 3\]"),
        (with_("model.layers.7.weight"), "'model.layers.7.weight', for which the model has no place"),
        (with_("optimiser.step.model.layers.7.weight", ()), "for which the model has no place"),
        (with_("program.history.layer0"), "'program.history.layer0', which this release does not know"),
        (with_("program.layer=2,vertex=1,chunks=4.rank-1.buffer.0"), "which this release does not know"),
        (with_("weights"), "'weights', which this release does not know"),
    ],
)
def test_one_that_does_not_fit_is_refused(damage: Callable[[Shapes], None], said: str) -> None:
    found = sound()
    damage(found)
    with pytest.raises(CheckpointError, match=said) as caught:
        require_state(found, PARAMETERS, "The checkpoint runs/a/checkpoints/epoch-000004", complete=True)
    assert "epoch-000004" in str(caught.value)
    assert "start a new run in another --out" in str(caught.value)
    assert "\n" not in str(caught.value)
