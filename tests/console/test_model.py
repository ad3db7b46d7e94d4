"""What a Run knows after its events, and what it admits not to know."""

import pytest

from mlrun.console.model import Run
from mlrun.protocol import (
    EvaluationEvent,
    FailureEvent,
    StateEvent,
    StepEvent,
    TelemetryEvent,
)


def step(rank, at, **changes):
    told = {
        "step": 10,
        "steps_total": 100,
        "epoch": 0,
        "steps": 10,
        "samples": 640,
        "seconds": 2.0,
        "data_s": 0.2,
        "compute_s": 1.5,
        "comm_s": 0.3,
        "lr": 0.1,
    }
    return StepEvent(**{**told, **changes}, time=at, rank=rank, host=f"mac-{rank + 1}")


def folded(events):
    run = Run()
    for event in events:
        run.apply(event)
    return run


def test_figures_of_a_whole_run(training):
    run = folded(training(4, 20))
    assert (run.name, run.world_size, run.unit) == ("resnet", 4, "images")
    assert (run.step, run.steps_total) == (160, 160)
    assert run.speed == pytest.approx(4 * 512)
    assert run.workers[3].split.total_ms == pytest.approx(125)
    assert run.workers[3].device == "mps"
    assert run.eta_s == 0
    assert run.losses[0] > run.losses[-1] == run.loss
    assert len(run.metric_history["accuracy"]) == 4
    assert run.cause is None
    assert run.phase == "done"


def test_nothing_is_known_before_it_is_told():
    run = folded([StateEvent("starting", {"world_size": 2}, time=1.0)])
    assert run.speed is None
    assert run.eta_s is None
    assert run.loss is None
    assert run.step is None


def test_total_speed_waits_for_every_rank():
    run = folded([StateEvent("starting", {"world_size": 2}, time=1.0), step(0, 2.0)])
    assert run.workers[0].speed == pytest.approx(320)
    assert run.speed is None
    run.apply(step(1, 2.1, samples=320))
    assert run.speed == pytest.approx(480)


def test_eta_follows_the_slowest_rank():
    run = folded([step(0, 2.0), step(1, 2.0, seconds=4.0, compute_s=3.5)])
    assert run.eta_s == pytest.approx(90 * 0.4)


def test_speed_is_that_of_the_last_seconds():
    run = folded([step(0, float(t), step=10 * t, samples=640 if t < 10 else 1280) for t in range(1, 15)])
    assert run.workers[0].speed == pytest.approx(640)


def test_unknown_use_is_none_and_never_the_other_processor():
    run = folded([StateEvent("training", {"device": "mps"}, time=1.0, rank=0, host="mac-1")])
    assert run.use(run.workers[0]) == ("GPU", None)
    run.apply(TelemetryEvent(cpu_percent=40.0, time=2.0, host="mac-1"))
    assert run.use(run.workers[0]) == ("GPU", None)
    run.apply(TelemetryEvent(gpu_percent=0.0, cpu_percent=40.0, time=3.0, host="mac-1"))
    assert run.use(run.workers[0]) == ("GPU", 0.0)


def test_cpu_training_shows_the_cpu():
    run = folded([StateEvent("training", {"device": "cpu"}, time=1.0, rank=0, host="mac-1")])
    run.apply(TelemetryEvent(cpu_percent=40.0, time=2.0, host="mac-1"))
    assert run.use(run.workers[0]) == ("CPU", 40.0)


def test_the_cause_is_the_first_that_is_no_consequence():
    lost = FailureEvent("exception", "lost rank 1", 3, consequence=True, time=1.0, rank=0)
    dead = FailureEvent("signal", "killed by SIGKILL", 3, time=1.1, rank=1)
    later = FailureEvent("exit", "exited with 1", 3, time=1.2, rank=2)
    assert folded([lost, dead, later]).cause is dead


def test_an_evaluation_told_by_every_rank_counts_once():
    told = [
        EvaluationEvent(10, 0, {"accuracy": 0.5}, 100, 0.1, time=1.0 + rank, rank=rank) for rank in range(3)
    ]
    assert list(folded(told).metric_history["accuracy"]) == [0.5]


def test_the_run_is_done_when_every_rank_is():
    run = folded([StateEvent("saving", time=1.0, rank=0), StateEvent("done", time=2.0, rank=1)])
    assert run.phase == "saving"
    run.apply(StateEvent("done", time=3.0, rank=0))
    assert run.phase == "done"
