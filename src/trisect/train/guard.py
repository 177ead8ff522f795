"""The convergence guard of stale training: is what is trained still what exact inference computes?

Now and then the training loss is computed exactly, with the parameters and the dropout masks of the epoch that follows;
that epoch then gives the stale loss. The two differ by staleness alone. While training goes well the exact one is not
above the stale one by much; where it rises above it, the stale loss falls by fitting history, and goes on falling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from trisect.layout.history import History
from trisect.train.optimizer import Optimizer
from trisect.train.program import Program

PATIENCE = 2
# losses below this share of the first epoch's are compared as if they were it: there is little left to lose
FLOOR = 0.1


class Guard:
    """Watches a program with history. Two alarms in a row, or a loss that is not finite, and it goes back to the last
    state that was found good and makes the program stricter (`History.tightened`).

    The state that is kept is parameters and optimizer. History is not: every stricter form begins with an exact epoch,
    which fills it anew. Epochs are not counted back; what they did is undone.

    Attributes:
        level: how often the program was made stricter.
        checks: `epoch`, `exact` and `stale` loss of each comparison.
        actions: what was done: `epoch`, `back_to` (the epoch whose state was taken up), `why`, `then`.
    """

    def __init__(self, history: History, program: Program, modules: nn.ModuleDict, optimizer: Optimizer) -> None:
        self.every, self.margin = history.guard, history.margin
        self._program, self._modules, self._optimizer = program, modules, optimizer
        self.level = 0
        self.began = 1
        self.alarms = 0
        self.checks: list[dict[str, Any]] = []
        self.actions: list[dict[str, Any]] = []
        self.good_epoch = 0
        self._good: dict[str, Tensor] = {}
        self._candidate: dict[str, Tensor] = {}
        self._exact: float | None = None

    @classmethod
    def of(cls, program: Program, modules: nn.ModuleDict, optimizer: Optimizer) -> Guard | None:
        """Give the guard of a program, or None where it needs none."""
        history = program.history
        return None if history is None or history.guard == 0 else cls(history, program, modules, optimizer)

    def before(self, epoch: int) -> None:
        """Call before each epoch: remembers the state, and computes the exact loss where that is due."""
        if not self._good:
            self._good, self.good_epoch = self._state(), epoch - 1
        self._exact = None
        if epoch % self.every == 0 and not self._program.in_chunks:
            self._exact = self._program.exact_loss(epoch)
            self._candidate = {} if self._exact is None else self._state()

    def after(self, epoch: int, loss: float, first_loss: float) -> dict[str, Any] | None:
        """Call after each epoch with its loss. Give what metrics.jsonl is to say about it, or None."""
        done = epoch - 1
        if epoch % self.every == 0 and self._program.in_chunks:
            # the loss of an epoch of steps is their mean, above that of the parameters behind the last one
            self._exact, done = self._program.exact_loss(epoch), epoch
            self._candidate = {} if self._exact is None else self._state()
        if self._exact is None:
            return None
        check = {"epoch": epoch, "exact": self._exact, "stale": loss}
        self.checks.append(check)
        told: dict[str, Any] = {"exact": self._exact, "stale": loss, "level": self.level}
        allowed = loss + self.margin * max(loss, FLOOR * first_loss)
        # all ranks know the same losses; rank 0 decides all the same
        if self._agreed(not self._exact <= allowed):
            self.alarms += 1
            if self.alarms >= PATIENCE:
                why = f"the exact training loss is {self._exact:.4g}, the stale one {loss:.4g}"
                told["stepped_in"] = self._go_back(epoch, why)
        else:
            self.alarms = 0
            self._good, self.good_epoch = self._candidate, done
        self._candidate = {}
        return told

    def rescue(self, epoch: int, loss: float) -> dict[str, Any] | None:
        """Call for an epoch whose loss is not finite; None where the program is exact already and nothing helps."""
        if self._program.history is None:
            return None
        return self._go_back(epoch - 1, f"the loss of epoch {epoch} is {loss}")

    def _agreed(self, alarm: bool) -> bool:
        return bool(self._program.listed(float(alarm))[0])

    def _go_back(self, epoch: int, why: str) -> dict[str, Any]:
        self._take(self._good)
        self.level, self.alarms, self.began = self.level + 1, 0, epoch + 1
        then = self._program.tighten(self.level, self.began)
        action = {"epoch": epoch, "back_to": self.good_epoch, "why": why, "then": then}
        self.actions.append(action)
        return action

    def _state(self) -> dict[str, Tensor]:
        state = {key: tensor.detach().clone() for key, tensor in self._modules.state_dict().items()}
        state.update({f"optimiser.{key}": tensor for key, tensor in self._optimizer.state().items()})
        return state

    def _take(self, state: Mapping[str, Tensor]) -> None:
        self._modules.load_state_dict({k: v for k, v in state.items() if not k.startswith("optimiser.")})
        self._optimizer.load({k.removeprefix("optimiser."): v for k, v in state.items() if k.startswith("optimiser.")})

    def tensors(self) -> dict[str, Tensor]:
        """Give the good state, by name, for a checkpoint."""
        return dict(self._good)

    def meta(self) -> dict[str, Any]:
        """Give all other state, as JSON has it."""
        return {
            "level": self.level,
            "began": self.began,
            "alarms": self.alarms,
            "good_epoch": self.good_epoch,
            "checks": [dict(check) for check in self.checks],
            "actions": [dict(action) for action in self.actions],
        }

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Take up what `tensors` and `meta` gave; the program becomes as strict as it was."""
        self._good = {key: value.clone() for key, value in tensors.items()}
        self.level, self.began, self.alarms = int(meta["level"]), int(meta["began"]), int(meta["alarms"])
        self.good_epoch = int(meta["good_epoch"])
        self.checks = [dict(check) for check in meta["checks"]]
        self.actions = [dict(action) for action in meta["actions"]]
        if self.level > 0:
            self._program.tighten(self.level, self.began)

    def summary(self) -> dict[str, Any]:
        """Give the last comparison, how many there were, and what was done."""
        last = {key: self.checks[-1][key] for key in ("epoch", "exact", "stale")} if self.checks else None
        return {"loss": last, "checks": len(self.checks), "stepped_in": [dict(action) for action in self.actions]}
