"""A run as it is organised in Lightning: a module that says its optimizer, its loss and its metrics, and callbacks.

    python examples/lightning_style.py
    python examples/lightning_style.py vertex=2
    python examples/lightning_style.py layer=2

`trisect.fit` is the trainer. With a layout it starts the ranks itself and hands them these functions, which is why
`pip install cloudpickle` is wanted for functions of a script.
"""

import sys

import torch
import trisect
from torch.nn import functional


class Communities:
    """All that is this project's own; the loop is not."""

    def model(self):
        return trisect.nn.build("gcnii", 16, 4, hidden_channels=32, num_layers=8, dropout=0.3)

    def loss(self, out, y):  # one value a row
        return functional.cross_entropy(out, y, reduction="none", label_smoothing=0.05)

    def configure_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.01)

    def configure_scheduler(self, optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=40)

    def top2(self, out, y):  # of all rows of a split, wherever they are
        return (out.topk(2).indices == y[:, None]).any(1).double().mean()


class Printer:
    """Called on every rank; the first one prints."""

    def on_evaluate(self, state):
        if state.rank == 0:
            val = state.metrics["val"]
            print(f"epoch {state.epoch:3}  loss {state.loss:.4f}  val {val['accuracy']:.4f}  top2 {val['top2']:.4f}")


class StopWhenGood:
    """Early stopping on a condition of one's own."""

    def __init__(self, accuracy):
        self.accuracy = accuracy

    def on_evaluate(self, state):
        if state.metrics["val"]["accuracy"] >= self.accuracy:
            state.stop()


def main(layout=""):
    graph = trisect.Graph.generate("community", vertices=2000, features=16, classes=4, degree=8, within=0.8)
    own = Communities()
    run = trisect.fit(
        own.model(),
        graph,
        layout=layout,
        loss=own.loss,
        optimizer=own.configure_optimizer,
        scheduler=own.configure_scheduler,
        metrics={"top2": own.top2},
        callbacks=[Printer(), StopWhenGood(0.98)],
        monitor="val.top2",
        patience=6,
        clip=1.0,
        ema=0.9,
        epochs=40,
        eval_every=5,
        progress=False,
    )
    print(f"test accuracy {run.metrics['test']['accuracy']:.4f}, top2 {run.metrics['test']['top2']:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
