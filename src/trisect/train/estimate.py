"""About how much memory training will take, from the sizes of the model and the data."""

from __future__ import annotations

from trisect.layout import Layout
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.train.blocks import carry_bytes
from trisect.train.setup import Setup

# gradient, two moments of Adam and the best so far, each as large as the parameters
_COPIES_OF_PARAMETERS = 4
# what a layer keeps for its backward pass, and the gradient beside it, in units of its output
_COPIES_OF_OUTPUTS = 3.0
# the same with the gates of a recurrent part
_COPIES_OF_DYNAMIC_OUTPUTS = 8.0


def estimate_memory(setup: Setup, vertices: int, layout: Layout) -> int:
    """Estimate the bytes that training adds to what the process holds now, on all ranks together.

    Args:
        layout: says in how many blocks a timeline is run: one block's activations are kept at a time, and the state
            between blocks.
    """
    parameters = list(setup.modules.parameters())
    size = parameters[0].element_size() if parameters else 4
    trained = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    model = setup.program.model
    width = sum(layer.out_channels for layer in model.stack)
    blocks = setup.layout.block_count if isinstance(layout.blocks, str) else layout.blocks
    outputs = -(-setup.steps // blocks) * vertices * width * size
    carried = blocks * carry_bytes(model.stack, vertices, size) if blocks > 1 and isinstance(model, DynamicModel) else 0
    copies = _COPIES_OF_DYNAMIC_OUTPUTS if setup.timeline else _COPIES_OF_OUTPUTS
    return int(_COPIES_OF_PARAMETERS * trained + copies * outputs + carried)
