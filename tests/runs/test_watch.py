"""Plateaus, collapses and spikes are found in curves with noise, and nothing is found in curves of runs that learn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from albert.runs.logs import kind_of
from albert.runs.watch import COLLAPSE, PLATEAU, SPIKE, Means, Watch

GUESS = Means(6.9, 0.06)
# The standard deviation of the loss of one step: 64 masked tokens of a batch, each with one of 2.4.
NOISE = 0.3


def accuracy_of(loss: float) -> float:
  """The accuracy that goes with a loss: 0.06 at guessing, 0.66 at a loss of 1.8."""
  return GUESS.accuracy + max(0.0, GUESS.loss - loss) * 0.12


def learning(step: float) -> float:
  """Guessing after 1,000 steps, then a power law: 2.9 after 20,000 steps, 2.0 after 125,000."""
  return max(10.5 - step / 300, min(7.0, 1.2 + 5.8 * (step / 1000) ** -0.4))


def write_lines(loss: Callable[[float], float], total: int, interval: int, seed: int) -> Iterator[dict[str, Any]]:
  """Yields lines of metrics.jsonl: means over `interval` steps, with noise."""
  rng = random.Random(seed)
  for step in range(interval, total + 1, interval):
    value = loss(step) + rng.gauss(0, NOISE / math.sqrt(interval))
    yield {"step": step, "masked_lm_loss": value, "masked_lm_accuracy": accuracy_of(value)}


def find_events(
  loss: Callable[[float], float], total: int = 125_000, interval: int = 500, seed: int = 1
) -> list[tuple[int, str]]:
  watch = Watch(GUESS, total_steps=total, warmup_steps=min(3125, total // 10))
  lines = write_lines(loss, total, interval, seed)
  return [(line["step"], event) for line in lines if (event := watch.add(line))]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("total", "interval"), [(125_000, 5000), (125_000, 200), (12_000, 25), (3000, 1)])
def test_nothing_is_found_in_runs_that_learn(total: int, interval: int, seed: int) -> None:
  assert find_events(learning, total, interval, seed) == []


@pytest.mark.parametrize("interval", [100, 5000])
@pytest.mark.parametrize(
  ("loss", "kind", "first", "last"),
  [
    # Learns nothing: 6.6 to 7.3 for ever. Twice the warm-up is step 6,250.
    (lambda step: max(10.5 - step / 300, 6.95 + 0.35 * math.sin(step / 2000)), PLATEAU, 6250, 20_000),
    # Diverges in the warm-up, which ends at step 3,125.
    (lambda step: 40.0, PLATEAU, 3125, 20_000),
    # Back from 2.1 to 6, and no further, 100,000 steps after the start.
    (lambda step: learning(step) if step < 100_000 else 6.0, COLLAPSE, 100_001, 115_000),
    # Back to guessing within 20,000 steps.
    (lambda step: min(6.9, max(learning(step), 2.3 + (step - 60_000) / 4000)), COLLAPSE, 66_000, 90_000),
    # Fell from a loss that was only a little below guessing.
    (lambda step: max(learning(step), 6.0) if step < 50_000 else 7.0, COLLAPSE, 50_001, 65_000),
  ],
)
def test_a_plateau_and_a_collapse_are_found_once(
  loss: Callable[[float], float], kind: str, first: int, last: int, interval: int
) -> None:
  ((step, event),) = find_events(loss, interval=interval)
  assert kind_of(event) == kind
  assert first <= step <= last
  assert "guessing: 6.9 and 0.06" in event


def test_a_spike_is_recorded_when_the_loss_has_recovered() -> None:
  ((step, event),) = find_events(lambda step: 8.0 if 40_000 < step <= 40_500 else learning(step))
  assert (kind_of(event), step) == (SPIKE, 41_000)
  assert event.endswith("after a rise of the loss from step 40500 on")


def test_each_stage_is_watched_for_itself_and_a_collapse_may_end() -> None:
  watch = Watch(GUESS, total_steps=20_000, warmup_steps=1000)
  events = []
  for step in range(100, 20_001, 100):
    # The second stage begins at guessing. In the third one the loss is lost for 2,000 steps.
    stage, loss = (1, 3.0) if step <= 5000 else (2, max(2.9, 6.9 - (step - 5000) / 500)) if step <= 10_000 else (3, 2.8)
    loss = 6.8 if 15_000 < step <= 17_000 else loss
    skipped = {"masked_lm_loss": math.nan, "masked_lm_accuracy": math.nan} if step % 700 == 0 else {}
    line = {"step": step, "stage": stage, "masked_lm_loss": loss, "masked_lm_accuracy": accuracy_of(loss), **skipped}
    event = watch.add(line)
    events += [kind_of(event)] if event else []
    assert watch.is_collapsed == (COLLAPSE in events and step <= 17_100)  # until a median has recovered
  assert events == [COLLAPSE]
