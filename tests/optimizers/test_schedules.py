"""Learning rate schedules, compared with their closed form, and the time limit that decides the number of steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.schedules import TimedDecay, TimeLimit, WarmupPolynomialDecay, make_schedule


@pytest.mark.parametrize(("warmup", "total", "end", "power"), [(5, 20, 0.0, 1.0), (0, 7, 0.0, 1.0), (3, 9, 0.1, 2.0)])
def test_warm_up_is_linear_and_decay_is_polynomial(warmup, total, end, power):
  schedule = WarmupPolynomialDecay(0.8, warmup, total, end=end, power=power)
  for step in range(total + 3):
    remaining = 1 - min(step, total) / total
    expected = 0.8 * step / warmup if step < warmup else end + (0.8 - end) * remaining**power
    assert float(schedule(tf.constant(step, tf.int64))) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_papers_schedule():
  schedule = make_schedule(OptimizerConfig(learning_rate=0.00176, num_warmup_steps=3125), 125_000, 4096)
  rates = [float(schedule(tf.constant(step))) for step in (0, 1, 3124, 3125, 62_500, 125_000)]
  # 3125 is 1/40 of the steps.
  expected = [0, 0.00176 / 3125, 0.00176 * 3124 / 3125, 0.00176 * (1 - 1 / 40), 0.00088, 0]
  np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-12)


def test_the_rate_is_scaled_with_the_square_root_of_the_batch_size():
  config = OptimizerConfig(learning_rate=0.00176, num_warmup_steps=0, scale_learning_rate=True)
  assert make_schedule(config, 10, 1024).peak == pytest.approx(0.00176 * (1024 / 4096) ** 0.5)


def test_a_scaled_rate_that_overflows_is_refused():
  config = OptimizerConfig(learning_rate=3e38, scale_learning_rate=True)
  with pytest.raises(UserError, match=r"--learning_rate=3e\+38 with --scale_learning_rate .* overflows float32"):
    make_schedule(config, 10, 2**20)


def test_serialization_round_trip():
  schedule = WarmupPolynomialDecay(0.8, 3, 9, end=0.1, power=2.0)
  deserialized = WarmupPolynomialDecay.from_config(schedule.get_config())
  assert [float(deserialized(step)) for step in range(12)] == [float(schedule(step)) for step in range(12)]


@pytest.mark.parametrize(
  ("warmup", "total", "message"),
  [
    (0, 0, r"num_train_steps \(0\) must be at least 1: give"),  # at step 0 the share of the steps done would be 0 / 0
    (0, -3, r"num_train_steps \(-3\) must be at least 1: give"),
    (30, 20, "num_warmup_steps=30 > 20 steps: give fewer"),
  ],
)
def test_a_schedule_without_steps_or_with_more_warmup_than_steps_is_refused(warmup, total, message):
  with pytest.raises(UserError, match=message):
    WarmupPolynomialDecay(0.1, warmup, total)


def test_the_steps_that_fit_into_the_time_are_decided_once_after_the_warmup():
  limit = TimeLimit(60.0, warmup_steps=10, max_steps=1000)
  assert (limit.next_stop(0), limit.last_step(0)) == (10, 1000)
  limit.add(1, 1, 30.0)  # the first call also builds the graph
  assert limit.seconds == 0.0
  limit.add(7, 6, 0.5)
  assert (limit.planned_steps, limit.next_stop(7)) == (0, 10)
  limit.add(10, 3, 0.5)
  # 9 steps have taken 4.5 seconds. 111 more fit into the other 55.5.
  assert (limit.planned_steps, limit.last_step(10), limit.next_stop(10)) == (121, 121, 1000)
  limit.add(110, 100, 0.54)
  assert (limit.planned_steps, limit.last_step(110)) == (121, 121)
  limit.add(112, 2, 1.0)  # 60.5 seconds
  assert limit.last_step(112) == 112


@pytest.mark.parametrize(("seconds_per_step", "expected"), [(1e-6, 50), (1e-3, 50), (1.0, 11), (100.0, 2)])
def test_the_number_of_steps_is_at_most_the_given_one(seconds_per_step: float, expected: int):
  limit = TimeLimit(10.0, warmup_steps=2, max_steps=50)
  limit.add(1, 1, seconds_per_step)
  limit.add(2, 1, seconds_per_step)
  assert limit.planned_steps == expected
  assert limit.last_step(2) == expected


def test_without_a_warmup_the_second_call_decides():
  limit = TimeLimit(10.0, warmup_steps=0, max_steps=50)
  assert limit.next_stop(0) == 1
  limit.add(1, 1, 1.0)
  assert (limit.planned_steps, limit.next_stop(1)) == (0, 2)
  limit.add(2, 1, 1.0)
  assert limit.planned_steps == 11


def test_the_rate_is_that_of_a_run_with_the_decided_number_of_steps():
  limit = TimeLimit(10.0, warmup_steps=4, max_steps=1000)
  schedule = TimedDecay(WarmupPolynomialDecay(0.5, 4, 1000, end=0.1, power=2.0), limit)
  rate = tf.function(schedule)  # traced before the number of steps is known
  known = WarmupPolynomialDecay(0.5, 4, 13, end=0.1, power=2.0)
  assert [float(rate(tf.constant(step))) for step in range(4)] == [float(known(step)) for step in range(4)]
  limit.add(1, 1, 9.0)
  limit.add(4, 3, 1.0)
  assert limit.planned_steps == 4 + 7
  known = WarmupPolynomialDecay(0.5, 4, 11, end=0.1, power=2.0)
  assert [float(rate(tf.constant(step))) for step in range(12)] == [float(known(step)) for step in range(12)]
