"""The training steps of all tasks, with small generated data."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece

from albert.config.model import MODELS, ModelConfig
from albert.config.run import FinetuningConfig
from albert.data.dataset import Dataset
from albert.data.pipeline import ShardDataset, Shards
from albert.tasks import registry
from albert.tasks.base import Task
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import MAX_LOGITS, PretrainingTask, record_features
from benchmarks.tpu.chips import NUM_CORES
from data_prep.examples.settings import PreparationSettings

# Number of words in a generated text: more than fit into a window of any task, and too few to fill two windows of 512
# tokens.
_WORDS = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A training step without its batch size.

  Attributes:
    step: a key of STEPS.
    model: a name of albert.config.model.MODELS.
    length: S, tokens in a sequence.
    recompute_grad: whether gradient checkpointing is on.
    gradient_accumulation_steps: number of micro-batches per update.
    one_hot: whether rows of the word embeddings are looked up by a product with a one-hot matrix instead of a gather.
    num_cores: number of cores that train together; gradients are summed over them.
    shard_optimizer_state: whether the moments are divided among the cores.
    num_hidden_layers: number of layers; 0 for that of the model.
  """

  step: str
  model: str
  length: int
  recompute_grad: bool = False
  gradient_accumulation_steps: int = 1
  one_hot: bool = False
  num_cores: int = NUM_CORES
  shard_optimizer_state: bool = False
  num_hidden_layers: int = 0

  @property
  def model_config(self) -> ModelConfig:
    """The named model, with `num_hidden_layers` layers."""
    named = MODELS[self.model]
    return dataclasses.replace(named, num_hidden_layers=self.num_hidden_layers or named.num_hidden_layers)

  @property
  def max_batch(self) -> int | None:
    """The largest batch whose logits of masked tokens TensorFlow can differentiate; None for fine-tuning."""
    if self.step != "pretraining":
      return None
    logits_per_sequence = _max_predictions(self.length) * self.model_config.vocab_size
    return self.gradient_accumulation_steps * (MAX_LOGITS // logits_per_sequence)

  @property
  def optimizer(self) -> str:
    """The optimizer of the paper: LAMB for pretraining, Adam (here AdamW) for fine-tuning."""
    return "lamb" if self.step == "pretraining" else "adamw"


def write_vocabulary(path: Path, num_pieces: int) -> str:
  """Writes a SentencePiece model for text that consists of numbers, with `num_pieces` pieces. Returns its path."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([" ".join(map(str, range(num_pieces)))] * 2),
    model_writer=model,
    vocab_size=num_pieces,
    model_type="word",
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    max_sentence_length=1 << 20,
    minloglevel=2,
  )
  path.write_bytes(model.getvalue())
  return str(path)


def _finetuning(
  task: str, file_name: str, contents: str, **settings: Any
) -> Callable[[ModelConfig, int, Path], tuple[Task, Dataset]]:
  """Returns an entry of STEPS for a fine-tuning task.

  Args:
    task: the name of the task.
    file_name: the name of its training file.
    contents: the contents of the training file.
    **settings: further fields of the task's config.
  """

  def make(model: ModelConfig, length: int, directory: Path) -> tuple[Task, Dataset]:
    train_file = directory / file_name
    train_file.write_text(contents, encoding="utf-8")
    config_class = registry.TASKS[task].config_class
    assert issubclass(config_class, FinetuningConfig)
    fields_of_task: dict[str, Any] = {"train_file": str(train_file), **settings}
    config = config_class(
      spm_model_file=write_vocabulary(directory / "spiece.model", model.vocab_size),
      max_seq_length=length,
      pad_to_max_length=True,
      cache_dir=str(directory / "features"),
      num_processes=1,
      **fields_of_task,
    )
    finetuning_task = registry.make_task(task, model, config)
    return finetuning_task, finetuning_task.training_data()

  return make


def _pretraining(model: ModelConfig, length: int, directory: Path) -> tuple[Task, Dataset]:
  """Makes the task and the data of pretraining. The shapes of batches follow from the settings, without shards."""
  del directory
  config = PretrainingConfig(max_seq_length=length, max_predictions_per_seq=_max_predictions(length))
  task = PretrainingTask(model, config)
  shards = Shards(paths=("none.tfrecord",), counts=(1,), compressed=(False,), sha256=("",))  # is never read
  return task, ShardDataset(shards, record_features(task.data, config.max_predictions_per_seq))


def _max_predictions(length: int) -> int:
  """Returns the number of masked tokens for which a sequence of `length` tokens has places."""
  return PreparationSettings(max_seq_length=length).max_predictions_per_seq


def _text() -> str:
  """A text of _WORDS numbers."""
  return " ".join(str(number) for number in range(_WORDS))


def _table(labels: tuple[object, ...]) -> str:
  """A TSV file with a text for each label."""
  return "text\tlabel\n" + "".join(f"{_text()}\t{label}\n" for label in labels)


def _squad(**question_fields: bool) -> str:
  """A SQuAD file with one question."""
  answer = {"text": "7", "answer_start": _text().index("7")}
  question = {"id": "q", "question": "which?", "answers": [answer], **question_fields}
  return json.dumps({"version": "1", "data": [{"paragraphs": [{"context": _text(), "qas": [question]}]}]})


def _race() -> str:
  """A JSON-lines file with one question of four options."""
  question = {"article": _text(), "question": "which?", "options": ["a", "b", "c", "d"], "answer": "A", "id": "1"}
  return json.dumps(question) + "\n"


def _columns() -> str:
  """A file of columns with one sentence, whose first word is a name."""
  return "".join(f"{number} {'O' if number else 'B-PER'}\n" for number in range(_WORDS))


# Name of the step -> a function of the model, the sequence length and an empty directory. It returns the task, and a
# data set whose batches have the shapes of batches on a TPU.
STEPS: dict[str, Callable[[ModelConfig, int, Path], tuple[Task, Dataset]]] = {
  "pretraining": _pretraining,
  "classification": _finetuning(
    "classifier", "train.tsv", _table(("a", "b", "c")), task_name="custom", text_columns="text"
  ),
  "regression": _finetuning(
    "classifier", "train.tsv", _table((0.5, 1.5)), task_name="custom", text_columns="text", regression=True
  ),
  "squad_v1": _finetuning("squad", "train.json", _squad()),
  "squad_v2": _finetuning("squad", "train.json", _squad(is_impossible=False), version_2_with_negative=True),
  "race": _finetuning("race", "train.jsonl", _race()),
  "tagging": _finetuning("tagging", "train.conll", _columns()),
}
