"""The flags of run_squad.py. Needs no TensorFlow."""

from __future__ import annotations

import dataclasses

from albert.config.base import changeable_option, evaluation_option, option
from albert.config.run import FinetuningConfig
from albert.errors import UserError

NUM_SPECIAL_TOKENS = 3  # of a window, beside the question and a part of the paragraph: [CLS] and two [SEP]
# Below these lengths of a window, the default length of questions and the default stride are a quarter of it.
_SHORT, _SHORT_FOR_STRIDE = 128, 384


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuningConfig):
  """The flags of run_squad.py that describe its files, windows and answers."""

  train_file: str = changeable_option(
    "",
    "questions with answers to train on: JSON files in the format of SQuAD, or rows with its columns as JSON lines or "
    "Parquet, as comma-separated globs",
  )
  eval_file: str = changeable_option("", "questions with answers to evaluate on; if not given, those of --predict_file")
  predict_file: str = changeable_option("", "questions to predict; they need no answers", resets=("eval_file",))
  version_2_with_negative: bool = option(False, "SQuAD v2.0: questions may be unanswerable")
  max_query_length: int = option(
    0,
    "maximum tokens of a question; a longer one is truncated; 0: 64, or a quarter of a max_seq_length below 128",
    minimum=0,
  )
  doc_stride: int = option(
    0,
    "tokens between the starts of two windows of a long paragraph; 0: 128, or a quarter of a max_seq_length below 384",
    minimum=0,
  )
  max_answer_length: int = evaluation_option(0, "maximum tokens of a predicted answer; 0: 30", minimum=0)
  n_best_size: int = evaluation_option(20, "most answers of a question in nbest_predictions_dev.json", minimum=1)
  start_n_top: int = evaluation_option(5, "most probable starts that the beam search of v2.0 keeps", minimum=1)
  end_n_top: int = evaluation_option(
    5, "most probable ends that the beam search of v2.0 keeps for each start", minimum=1
  )
  null_score_diff_threshold: float = evaluation_option(
    0.0, "log odds of being unanswerable above which the answer is empty (v2.0)"
  )

  def default_lengths(self) -> dict[str, int]:
    """Returns field -> the value that 0 stands for. Short windows are divided between question and paragraph."""
    quarter = self.max_seq_length // 4
    query = quarter if self.max_seq_length < _SHORT else 64
    stride = quarter if self.max_seq_length < _SHORT_FOR_STRIDE else 128
    room = self.max_seq_length - (self.max_query_length or query) - NUM_SPECIAL_TOKENS
    return {"max_query_length": query, "doc_stride": stride, "max_answer_length": min(30, room)}

  def __post_init__(self) -> None:
    super().__post_init__()
    if (threshold := self.null_score_diff_threshold) and not self.version_2_with_negative:
      raise UserError(f"--null_score_diff_threshold={threshold:g} has no effect without --version_2_with_negative")
    if self.max_query_length + NUM_SPECIAL_TOKENS >= self.max_seq_length:
      raise UserError(
        f"--max_query_length={self.max_query_length} leaves no room for a paragraph in "
        f"--max_seq_length={self.max_seq_length}: give --max_query_length={self.max_seq_length // 4}"
      )


def recipe_name(config: SquadConfig) -> str:
  """Returns the name of the recipe in configs/ for the version of SQuAD that the flags select."""
  return "squad_v2" if config.version_2_with_negative else "squad_v1"
