"""A model of PyG as it stands in a loop of your own: focal loss, AdamW, one cycle of the learning rate, clipping.

    python examples/own_loop.py
    torchrun --nproc-per-node 2 examples/own_loop.py

Both print the same losses: under torchrun the graph is cut by vertex, a part for each rank.
"""

import os

import torch
import trisect
from torch.nn import functional
from torch_geometric.nn import GCN

EPOCHS = 40


def focal_loss(out, rows, gamma=2.0):
    """Sum over the training rows at hand, divided by how many there are on all ranks."""
    log_p = functional.log_softmax(out[rows.train], -1).gather(1, rows.y[rows.train, None])
    return -((1 - log_p.exp()) ** gamma * log_p).sum() / rows.total("train")


def right(out, rows):
    """Numbers that add up over rows; `part.evaluate` adds them up over ranks."""
    return {"right": float((out.argmax(1) == rows.y)[rows.test].sum())}


torch.manual_seed(0)
graph = trisect.Graph.generate("community", vertices=2000, features=16, classes=4, degree=8, within=0.8)
model = GCN(16, 32, num_layers=2, out_channels=4, dropout=0.5)  # or any module called as module(x, g)
part = trisect.parallelize(model, graph, layout=f"vertex={os.environ.get('WORLD_SIZE', '1')}")
optimizer = torch.optim.AdamW(part.parameters(), lr=0.01, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.03, total_steps=EPOCHS)
for epoch in range(1, EPOCHS + 1):
    loss = part.step(focal_loss)
    norm = part.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    if part.rank == 0 and epoch % 10 == 0:
        print(f"epoch {epoch:3} loss {loss:.5f} norm {norm:.4f}")
found = part.evaluate(right)["right"] / part.rows.total("test")
if part.rank == 0:
    print(f"test accuracy {found:.4f}")
