"""Errors after the loss of another process or of a TPU."""

from __future__ import annotations

import pytest
import tensorflow as tf

from albert.errors import RunError
from albert.io.workers import is_lost_process
from albert.training.distribution.cluster import Cluster


class FakeTPUStrategy(tf.distribute.TPUStrategy):
  """A TPUStrategy without a TPU."""

  def __init__(self) -> None:
    pass


# What TensorFlow raises after the loss of a TPU.
RESTART_MESSAGE = "Unable to find a context_id matching the specified one (7). Perhaps the worker was restarted"
ERRORS_OF_LOSS: list[tf.errors.OpError] = [
  tf.errors.UnavailableError(None, None, "Socket closed\nAdditional GRPC error information: ..."),
  tf.errors.AbortedError(None, None, "RecvTensor expects a different device incarnation: 15 vs. 17."),
  tf.errors.CancelledError(None, None, "RPC was cancelled"),
  tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded"),
  tf.errors.InvalidArgumentError(None, None, RESTART_MESSAGE),
  tf.errors.FailedPreconditionError(None, None, "The TPU system has not been initialized."),
  tf.errors.InternalError(None, None, "Core halted unexpectedly"),
]


@pytest.mark.parametrize("error", ERRORS_OF_LOSS, ids=lambda error: type(error).__name__)
def test_the_loss_of_a_tpu_is_an_error_of_one_line_with_the_remedy(error: tf.errors.OpError) -> None:
  with pytest.raises(RunError) as caught, Cluster(FakeTPUStrategy()).report_lost_processes(lambda: "start it again"):
    raise error
  first_line = str(error).split("\n", maxsplit=1)[0]
  assert str(caught.value) == (
    f"the TPU was preempted or restarted, or the connection to it is lost ({type(error).__name__}: {first_line}); "
    "start it again"
  )


def test_a_service_that_does_not_answer_is_reported_on_any_device() -> None:
  report = Cluster(tf.distribute.get_strategy()).report_lost_processes(lambda: "start it again")
  with pytest.raises(RunError, match=r"does not answer \(UnavailableError: Socket closed\); start it again"), report:
    raise tf.errors.UnavailableError(None, None, "Socket closed")


def test_other_errors_are_not_changed() -> None:
  for error in (
    tf.errors.InvalidArgumentError(None, None, "Key: input_ids. Can't parse serialized Example."),
    tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
  ):
    assert not is_lost_process(error)
    with pytest.raises(type(error)), Cluster(tf.distribute.get_strategy()).report_lost_processes(lambda: ""):
      raise error
