"""About how much memory training will take, from the sizes of the model and the data."""

from __future__ import annotations

from trisect.train.setup import Setup

# gradient, two moments of Adam and the best so far, each as large as the parameters
_COPIES_OF_PARAMETERS = 4
# what a layer keeps for its backward pass, and the gradient beside it, in units of its output
_COPIES_OF_OUTPUTS = 3.0
# the same with the gates of a recurrent part
_COPIES_OF_DYNAMIC_OUTPUTS = 8.0


def estimate_memory(setup: Setup, vertices: int) -> int:
    """Bytes that training will take beyond what the process holds now."""
    parameters = list(setup.modules.parameters())
    size = parameters[0].element_size() if parameters else 4
    trained = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    width = sum(layer.out_channels for layer in setup.program.model.stack)
    outputs = setup.steps * vertices * width * size
    copies = _COPIES_OF_DYNAMIC_OUTPUTS if setup.timeline else _COPIES_OF_OUTPUTS
    return int(_COPIES_OF_PARAMETERS * trained + copies * outputs)
