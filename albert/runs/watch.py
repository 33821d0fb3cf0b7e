"""Watches the metrics of pretraining for a plateau, a collapse and spikes. Imports no TensorFlow.

All decisions depend on the logged lines alone, so that a resumed run makes the same ones, and on averages over many
steps, so that the noise of single batches has no effect.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from albert.runs.logs import STAGE_KEY

# The metrics that are watched, in the order of Means.
WATCHED_METRICS = ("masked_lm_loss", "masked_lm_accuracy")
# The kinds of events.
PLATEAU, COLLAPSE, SPIKE = "plateau", "collapse", "spike"
# A loss above this share of the loss of guessing is not better than guessing.
GUESSING_SHARE = 0.95
# An accuracy is better than guessing if it is greater by more than this.
ACCURACY_MARGIN = 0.02
# Each average covers at least this many steps, and at least this share of the steps of the run.
_MIN_STEPS, _SHARE_OF_RUN = 50, 1 / 250
# A decision needs the median of this many averages.
_NUM_AVERAGES = 3
# A run has learned if its loss is below this share of the loss of guessing, or if its accuracy exceeds that of guessing
# by this.
_LEARNED_SHARE, _LEARNED_ACCURACY = 0.9, 3 * ACCURACY_MARGIN
# Shares of what was learned (see Watch._lost_share). If more than the first one is lost, the metrics are far from the
# best ones. If at most the second one is lost, they are near.
_FAR_SHARE, _NEAR_SHARE = 0.5, 0.25
# A loss above this multiple of that of guessing after the warm-up shows that a run diverges.
_DIVERGED = 2.0
# A plateau is reported only after this many steps of its stage, and after twice the steps of the warm-up.
_PLATEAU_STEPS = 3000


class Means(NamedTuple):
  """The loss and the accuracy of the masked tokens: of some steps, or of guessing by the frequency of tokens."""

  loss: float
  accuracy: float


class WatchSettings(NamedTuple):
  """How a run is watched.

  Attributes:
    guess: the loss and the accuracy of guessing.
    hazards: what may keep this run from learning, as phrases with a remedy; the most likely one is the first.
    stops: whether the run stops when it has collapsed.
  """

  guess: Means
  hazards: Sequence[str] = ()
  stops: bool = False


class Watch:
  """Finds events in the lines of metrics.jsonl, which it gets one after another.

  - Plateau: well after the warm-up, neither the loss nor the accuracy has been better than guessing; or, once the
    warm-up is over, the loss is far above that of guessing.
  - Collapse: after the run had learned, the median of the loss is nearer to that of guessing than to the best one, or
    the median of the accuracy is not better than guessing.
  - Spike: the same, but too short to change the median. It is found when the loss has recovered.

  Each stage of a run is watched separately, since its depth and its sequences differ. A plateau is found once in a
  stage, and a collapse once until the loss has recovered.

  Args:
    guess: the loss and the accuracy of guessing.
    total_steps: the last step of the run.
    warmup_steps: the length of the warm-up.

  Attributes:
    best: the lowest median of the loss in this stage, and its step.
    is_collapsed: whether the loss has not recovered from a collapse.
    healthy_step: the last step at which the metrics were near the best; None until the run has learned, since it cannot
      collapse before that.
  """

  def __init__(self, guess: Means, *, total_steps: int, warmup_steps: int):
    self.guess = guess
    self._interval = max(_MIN_STEPS, math.ceil(total_steps * _SHARE_OF_RUN))
    self._warmup_steps, self._plateau_steps = warmup_steps, max(_PLATEAU_STEPS, 2 * warmup_steps)
    self._begin_stage("", 0)  # no stage has this name

  def _begin_stage(self, stage: Any, step: int) -> None:
    self._stage, self._first_step = stage, step
    self.healthy_step: int | None = None
    self._lines: list[Means] = []  # since `_average_step`
    self._average_step = step
    self._averages: list[Means] = []
    self.best = (math.inf, step)
    self._best_accuracy = 0.0
    self._spike_step = 0  # first step of a spike that has not ended
    self.is_collapsed = self._has_plateau = False

  def add(self, line: Mapping[str, Any]) -> str:
    """Adds the next line of metrics.jsonl. Returns the event that it shows, as "KIND: numbers"; "" for none."""
    step, values = line["step"], [line[name] for name in WATCHED_METRICS if line.get(name) is not None]
    if line.get(STAGE_KEY) != self._stage:
      self._begin_stage(line.get(STAGE_KEY), step)
      return ""
    if len(values) < len(WATCHED_METRICS) or not all(map(math.isfinite, values)):  # e.g. float16 skipped all steps
      return ""
    self._lines.append(Means(*values))
    if step - self._average_step < self._interval:
      return ""
    average = Means(*map(statistics.fmean, zip(*self._lines, strict=True)))
    self._averages = [*self._averages, average][-_NUM_AVERAGES:]
    self._lines, self._average_step = [], step
    return self._judge(step, average)

  def _judge(self, step: int, average: Means) -> str:
    median = Means(*map(statistics.median, zip(*self._averages, strict=True)))
    has_median = len(self._averages) == _NUM_AVERAGES
    numbers = f"at step {step} the masked LM loss is {median.loss:.4g} and the accuracy {median.accuracy:.3g}"
    numbers += f" (guessing: {self.guess.loss:.4g} and {self.guess.accuracy:.3g})"
    lost = self._lost_share(average)
    if has_median and self._lost_share(median) > _FAR_SHARE:
      is_new, self.is_collapsed, self._spike_step = not self.is_collapsed, True, 0
      return f"{COLLAPSE}: {numbers}; the loss was {self.best[0]:.4g} at step {self.best[1]}" if is_new else ""
    if lost > _FAR_SHARE:
      self._spike_step = self._spike_step or step
    elif self._spike_step and not self.is_collapsed:
      first_step, self._spike_step = self._spike_step, 0
      return f"{SPIKE}: {numbers} after a rise of the loss from step {first_step} on"
    self.is_collapsed = self.is_collapsed and lost > _NEAR_SHARE
    if has_median:
      self.best = min(self.best, (median.loss, step))
      self._best_accuracy = max(self._best_accuracy, median.accuracy)
    if 0 <= self._lost_share(average) <= _NEAR_SHARE:  # the best metrics may have changed
      self.healthy_step = step
    is_late = step >= max(self._plateau_steps, self._first_step + _PLATEAU_STEPS)
    is_late = is_late or (step >= self._warmup_steps and median.loss > _DIVERGED * self.guess.loss)
    is_better = self.best[0] <= GUESSING_SHARE * self.guess.loss
    is_better = is_better or self._best_accuracy > self.guess.accuracy + ACCURACY_MARGIN
    if not (has_median and is_late) or is_better or self._has_plateau:
      return ""
    self._has_plateau = True
    return f"{PLATEAU}: {numbers}"

  def _lost_share(self, means: Means) -> float:
    """Returns the share of what was learned that is lost, at least 0; -1 if the run has not learned.

    It is 0.5 if the loss is midway between guessing and the best one, or the accuracy ACCURACY_MARGIN above guessing.
    """
    lost = -1.0
    if self.best[0] < _LEARNED_SHARE * self.guess.loss:
      lost = max(0.0, (means.loss - self.best[0]) / (self.guess.loss - self.best[0]))
    if self._best_accuracy > self.guess.accuracy + _LEARNED_ACCURACY:
      learned = self._best_accuracy - self.guess.accuracy - ACCURACY_MARGIN
      lost = max(0.0, lost, _FAR_SHARE * (self._best_accuracy - means.accuracy) / learned)
    return lost
