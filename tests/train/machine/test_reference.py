"""Reference runs: short trainings and their times."""

from __future__ import annotations

from trisect.train.machine.reference import EPOCHS, Reference, _Timer, sample_graph


def test_the_first_epoch_and_evaluation_do_not_count():
    timer = _Timer()
    for epoch, seconds in ((1, 9.0), (2, 1.0), (3, 1.0)):
        timer.event("0F0", 0.0, seconds, epoch=epoch)
        timer.event("0F0~e", 0.0, 5.0, epoch=epoch, evaluation=True)
    assert timer.by_verb() == {"F": 1.0}


def test_epochs_alternate_between_numbers_of_threads():
    more, fewer = Reference("gcn", {"layers": 2, "hidden": 8}, sample_graph(4.0, 8, 300)).in_turn([None, 1])
    for timed in (more, fewer):
        assert len(timed.epochs) == EPOCHS
        assert set(timed.ranks[0]) >= {"F", "B"}
