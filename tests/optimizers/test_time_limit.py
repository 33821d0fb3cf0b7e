"""A time limit decides the number of steps at the end of the warm-up, from the speed in it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from albert.optimizers.schedules import WarmupPolynomialDecay
from albert.optimizers.time_limit import TimedDecay, TimeLimit


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
