"""`parallelize`: a model of the user's own, in a loop of the user's own, under a layout."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.comm.world import world_from_environment
from trisect.config import TrainOptions
from trisect.errors import ConfigError, LayoutError
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.layout.steps import Batch
from trisect.nn import Model, Normalisation
from trisect.nn.base import Wrapped
from trisect.nn.pyg.wrapped import is_pyg
from trisect.noise import Noise
from trisect.pipeline.sight import Sight
from trisect.pipeline.stage import Stage
from trisect.shards.graph_files import read_cut
from trisect.tasks.own_loss import BoundOwnLoss, OwnLoss, OwnLossFunction, Rows
from trisect.train.assemble import feature_width
from trisect.train.checks import is_cut
from trisect.train.device import device_of_rank
from trisect.train.fit import ModelLike, as_data, layout_of, model_maker
from trisect.train.optimizer import clip_gradients
from trisect.train.processes.folders import temporary_folder
from trisect.train.processes.joined import joined
from trisect.train.pyg_model import pyg_model
from trisect.train.ranks import cut_data
from trisect.train.setup import Setup
from trisect.views.running import Running
from trisect.views.trace import trace_of


def parallelize(
    model: nn.Module | ModelLike,
    graph: Any,
    layout: str | Mapping[str, Any] | Layout = "",
    *,
    seed: int = 0,
    normalisation: Normalisation = "symmetric",
    self_loops: bool = True,
    **options: Any,
) -> Part:
    """Return this rank's part of a model on a graph or a timeline, to be trained in a loop of your own.

    Under torchrun or `trisect.launch` every rank calls it with the same arguments, and it joins the others; with a
    layout of one rank it is the whole. ::

        part = trisect.parallelize(model, graph, layout="vertex=2")
        optimizer = torch.optim.AdamW(part.parameters())
        for epoch in range(200):
            part.step(lambda out, rows: loss(out[rows.train], rows.y[rows.train]).sum() / rows.total("train"))
            optimizer.step()
            optimizer.zero_grad()

    Args:
        model: any module called as module(x, g) with g a `trisect.View`, which can be cut by vertex, time and chunks;
            or a model of PyG as it stands, called as module(x, edge_index, …), which can be cut by vertex; or a model
            of `trisect.nn`, a list of its layers or a name, which can be cut by layer too.
        graph: what `trisect.fit` takes.
        layout: such as `"vertex=2,layer=2"`.
        seed: of everything random.
        normalisation: how the matrix is prepared for a module(x, g); a model of `trisect.nn` says so itself.
        self_loops: whether it has a loop for each vertex, likewise.
        options: of training that matter here: `device`, `precision`, `threads`, `timeout`, `order`.

    Raises:
        LayoutError: the layout does not fit the model, the data, or the number of ranks.
    """
    data = as_data(graph)
    training = TrainOptions(seed=seed, checkpoint_every=None, **options)
    chosen = training.steps.laid_out(layout_of(layout))
    if chosen.auto:
        raise LayoutError("layout is auto, which parallelize does not choose; ask trisect.plan and name one.")
    maker: Any
    if isinstance(model, nn.Module) and not isinstance(model, Model):
        if chosen.layer > 1:
            raise LayoutError(
                f"the layout is {chosen}, and {type(model).__name__} is one module, which can be cut by vertex and"
                " time; to cut it by layer, give a list of layers."
            )
        if is_pyg(model):
            maker, data = pyg_model(model, data, chosen, graph)
        else:
            wrapped = Wrapped(model, feature_width(data))
            wrapped.out_channels = trace_of(wrapped, timeline=isinstance(data, Timeline)).out_channels
            maker = Model([wrapped], normalisation=normalisation, self_loops=self_loops)
    else:
        maker = model_maker(model, {}, seed, data)
    if not is_cut(chosen):
        return Part(Setup.of(maker, data, OwnLoss(), training, chosen))
    stack = ExitStack()  # which ends with this process
    atexit.register(stack.close)
    world = world_from_environment()
    if world is None and chosen.world == 1:
        folder = Path(stack.enter_context(temporary_folder("trisect-shards-")))
        cut_data(data, maker, OwnLoss(), chosen, training, folder)
        mesh = Mesh(chosen, 0, device_of_rank(training.device, 0))
        return Part(Setup.of(maker, read_cut(folder), OwnLoss(), training, chosen, mesh=mesh))
    if world is None:
        raise LayoutError(
            f"the layout is {chosen}, which needs {chosen.world} ranks, and this process is alone; start it with"
            f" torchrun --nproc-per-node {chosen.world}, or call trisect.launch(function, {str(chosen)!r})."
        )
    device = device_of_rank(training.device, world.local_rank)
    cut = partial(cut_data, data, maker, OwnLoss(), chosen, training)
    mesh, host = stack.enter_context(joined(chosen, world, device, training.timeout, cut))
    _agree(maker, Transport(mesh, Ledger()))
    shards = read_cut(host.folder)
    return Part(Setup.of(maker, shards, OwnLoss(), training, chosen, mesh=mesh, local_ranks=world.local_size))


def _agree(maker: Any, transport: Transport) -> None:
    """Let all ranks begin with the parameters of rank 0, as DistributedDataParallel does."""
    if not isinstance(maker, nn.Module):
        return
    own = {name: value.detach().cpu() for name, value in maker.state_dict().items()}
    first = transport.gather(own if transport.mesh.rank == 0 else {})[0]
    maker.load_state_dict(first)


class Part:
    """One rank's part of a model and of the data.

    Attributes:
        rank, world: of this process.
        x: features of the own rows, [rows, features] or [steps, rows, features].
        y, train, val, test, vertices: of the own rows; see `Rows`.
        model: the modules of this rank's stage; `model.eval()` ends random numbers in `step` and in calls.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._program = setup, setup.program
        program = self._program
        self._task: BoundOwnLoss = setup.task  # type: ignore[assignment]
        self._own: BoundOwnLoss = program.own_task  # type: ignore[assignment]
        self.rank, self.world = program.mesh.rank, program.mesh.layout.world
        self.model: nn.Module = setup.modules["model"]
        # a module of the user's own keeps its names
        wrapped = [module for module in self.model.modules() if isinstance(module, Wrapped)]
        self._named = wrapped[0].module if wrapped else self.model
        self.model.train()
        self._epoch = 0
        self._own.calls[:] = [program.mesh.layout.vertex * program.mesh.layout.time]
        self.rows = self._own.rows(self._steps)
        rows = self.rows
        self.y, self.train, self.val, self.test, self.vertices = rows.y, rows.train, rows.val, rows.test, rows.vertices
        engine = program.engine
        self._sight = Sight(program.plan, program.shard, engine.door, None, engine.along)
        self._x: Tensor | None = None

    @property
    def _steps(self) -> range:
        plan = self._program.plan
        if not plan.timeline:
            return range(1)
        runs = [block[self._program.mesh.run_index] for block in plan.runs]
        return range(runs[0].start, runs[-1].stop)

    @property
    def x(self) -> Tensor:
        """Features of the own rows."""
        if self._x is None:
            self._x = self._sight.features(self._steps, None)
        return self._x

    # Parameters

    def parameters(self) -> Iterator[Parameter]:
        """Return the parameters that this rank trains: of its stage."""
        return self.model.parameters()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Return the parameters of this rank's stage with their names in the whole model."""
        return self._named.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Return all parameters and buffers of the whole model, the same on every rank."""
        mesh = self._program.mesh
        own = {name: value.detach().cpu() for name, value in self._named.state_dict().items()}
        whole: dict[str, Tensor] = {}
        first = mesh.part_index == 0 and mesh.run_index == 0
        for stage in Transport(mesh, Ledger()).gather(own if first else {}):
            whole.update(stage)
        return whole

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state_dict` gave, under any layout."""
        own = self._named.state_dict()
        missing = [name for name in own if name not in state]
        if missing:
            raise ConfigError(f"the state has no {missing[0]!r}, which the model has; give what state_dict returned.")
        self._named.load_state_dict({name: state[name] for name in own})

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`; return the norm before.

        torch.nn.utils.clip_grad_norm_ would see this rank's stage alone.
        """
        return clip_gradients(self.parameters(), max_norm, self._program.total_square)

    # Training

    def batches(self, epoch: int | None = None) -> Iterator[Batch]:
        """Return the batches of an epoch (1, 2, …; None: the next one), each of which `step` takes once, in order.

            part = trisect.parallelize(model, graph, step="chunk", batches=10)
            for epoch in range(1, 21):
                for batch in part.batches(epoch):
                    part.step(loss, batch)
                    optimizer.step()
                    optimizer.zero_grad()

        Which vertices a batch has is drawn by the seed and the epoch, the same on all ranks.
        """
        self._epoch = self._epoch + 1 if epoch is None else epoch
        batches = self._program.batches(self._epoch)
        for batch in batches:
            if batch is None:
                raise ConfigError('an epoch is one step here; give parallelize step="chunk" and batches=10, say.')
            yield batch

    def step(self, loss: OwnLossFunction, batch: Batch | None = None) -> float:
        """Go forward and backward over all data, or over a batch, as the layout does; return the loss of all ranks.

        The gradients of all rows are then in `.grad`, added to what was there. Of a batch, loss and gradients are times
        the number of batches, so that they stand for those of all rows.

        Args:
            batch: one of `batches()`; None: all data.
            loss: loss(out, rows) → the own rows' part of the loss, a sum divided by a count of all ranks, such as
                `rows.total("train")`. Called once for each chunk or block, where the last layers are; what the calls on
                all ranks return is added up. A term that every call computes is divided by their number::

                    part.step(lambda out, rows: my_loss(out, rows) + penalty(weight) / rows.calls)

                Under a cut by layer, parameters of earlier stages are on other ranks; the optimizer's `weight_decay`
                reaches all of them.
        """
        before = [(p, p.grad) for p in self.parameters()]
        for parameter, _ in before:
            parameter.grad = None
        self._own.asked[:] = [loss]
        program = self._program
        if batch is None and program.in_chunks:
            raise ConfigError(
                "each step is a batch here; take it from part.batches(), and call part.step(loss, batch)."
            )
        if batch is None:
            self._epoch += 1
        program.begin(self._epoch, batch, drops=self.model.training)
        once = self.rows.calls
        self._own.calls[:] = [program.loss_calls]
        try:
            program.run()
            total = program.finish()
        finally:
            self._own.calls[:] = [once]
        for parameter, gradient in before:
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        return total if batch is None else total * batch.count

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs of the own rows; `loss.backward()` on them reduces the gradients over all ranks.

        Where nothing is cut by layer and the data go through at once. A loss is the own rows' part, as in `step`.
        """
        program, plan = self._program, self._program.plan
        layout = program.mesh.layout
        if layout.layer > 1 or layout.chunks > 1 or plan.blocks > 1 or layout.recompute:
            raise LayoutError(f"the layout is {layout}, under which rows go through in pieces; use part.step(loss).")
        engine = program.engine
        noise = None
        if self.model.training:
            self._epoch += 1
            noise = Noise(program.noise.seed, self._epoch, vertices=program.noise.vertices)
        engine.door.noise, engine.door.block = noise, 0
        if engine.along is not None:
            engine.along.begin(plan.cut(program.mesh.run_index), keeps=False)
            engine.along.enter(0, again=False)
        running = self._sight.running = None if noise is None else Running(plan.all_steps)
        view = self._sight.view(self._steps, None, noise, x=x if x is self._x else None)
        stage: Stage = engine.stage_of(plan)
        out = stage.run(0, {"x": x}, view)["x"]
        if running is not None:
            if layout.time > 1:
                program.reduce(running.shares(plan.dtype, counts=program.mesh.part_index == 0))
            running.settle()
        return out if not torch.is_grad_enabled() else reduced(view.tie(out), engine.parameters, program.reduce)

    @torch.no_grad()
    def evaluate(self, measure: Callable[[Tensor, Rows], Mapping[str, float]]) -> dict[str, float]:
        """Return measures summed over all ranks, of exact outputs without random numbers.

        Args:
            measure: measure(out, rows) → numbers by name that add up over rows, such as counts.
        """
        total: dict[str, float] = {}
        for first, frames in self._program.outputs(self._all_steps):
            found = measure(
                frames if self._own.timeline else frames[0], self._own.rows(range(first, first + len(frames)))
            )
            for name, value in found.items():
                total[name] = total.get(name, 0.0) + float(value)
        merged: dict[str, float] = {}
        for own in Transport(self._program.mesh, Ledger()).gather(total):
            for name, value in own.items():
                merged[name] = merged.get(name, 0.0) + value
        return merged

    @torch.no_grad()
    def predict(self) -> Tensor | None:
        """Return exact outputs of the own rows, [rows, channels] or [steps, rows, channels]; None but in the last
        stage.
        """
        frames: Sequence[Tensor] = [frames for _, frames in self._program.outputs(self._all_steps)]
        if not frames:
            return None
        whole = torch.cat(list(frames))
        return whole if self._own.timeline else whole[0]

    @property
    def _all_steps(self) -> range:
        return range(self._own.count)


def reduced(out: Tensor, parameters: Sequence[Parameter], reduce: Callable[[Sequence[Tensor]], None]) -> Tensor:
    """Return out; when a backward from it has ended, what it added to gradients is summed over ranks."""
    result: Tensor = _Reduced.apply(out, list(parameters), reduce)  # type: ignore[no-untyped-call]
    return result


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, parameters: list[Parameter], reduce: Callable[[Sequence[Tensor]], None]
    ) -> Tensor:
        ctx.parameters, ctx.reduce = parameters, reduce
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        before = [(p, None if p.grad is None else p.grad.clone()) for p in ctx.parameters]
        reduce = ctx.reduce

        def ended() -> None:
            added = []
            for parameter, grad in before:
                now = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                added.append(now if grad is None else now - grad)
            reduce(added)
            for (parameter, grad), own in zip(before, added, strict=True):
                parameter.grad = own if grad is None else grad + own

        # as DistributedDataParallel does: when the whole backward has ended
        torch.autograd.Variable._execution_engine.queue_callback(ended)
        return gradient, None, None
