"""The interface of a task: its model, data, losses, metrics and predictions; and the examples of a fine-tuning task.

The training loop, the evaluator and the scripts use this interface and name no task. A task has two halves. The data
half reads and checks the files; it needs no TensorFlow (albert.tasks.finetuning.FinetuningData). The model half, a
subclass of Task, has the features, the model, the losses and the metrics.

B examples in a batch, N examples in a dataset.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.base import Config
from albert.config.model import ModelConfig
from albert.config.run import USUAL_EPOCHS, USUAL_STEPS, RunConfig
from albert.data.batches import ExampleDataset
from albert.data.dataset import Dataset
from albert.data.examples import TokenizedExamples, cut_warning, make_examples
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.data.rows import DataSource, Rows, TableData
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted
from albert.runs import output_files
from albert.runs.watch import Means, WatchSettings
from albert.tasks.finetuning import NUM_SAMPLE_ROWS, FinetuningData
from albert.tasks.splits import TEST, TRAIN
from albert.tokenization.tokenizer import unknown_characters, unknown_share, unknown_warnings
from albert.tokenization.vocabulary import VocabularyId, vocabulary_copies
from albert.weights.names import heads

LOSS = "loss"  # the name of the whole loss: the sum of the terms that Task.loss_names lists

Batch = Mapping[str, tf.Tensor]
# Output name -> [N, ...]: the model's outputs for all examples of a dataset, in the order of the dataset.
DatasetOutputs = dict[str, np.ndarray]

_TaskT = TypeVar("_TaskT", bound="Task")


class WeightedSum(NamedTuple):
  """A weighted sum of values, and the sum of their weights. The weighted mean is total / weight.

  The sums of several batches or replicas can be added, unlike their means.

  Attributes:
    total: float32 scalar, the sum of value x weight over examples or tokens.
    weight: float32 scalar, the sum of the weights.
  """

  total: tf.Tensor
  weight: tf.Tensor


def weighted_sum(values: tf.Tensor, weights: tf.Tensor) -> WeightedSum:
  """Computes the weighted sum of values, and the sum of their weights.

  Args:
    values: float32, [B] for examples or [B, P] for masked tokens.
    weights: float32, of the same shape.
  """
  return WeightedSum(tf.reduce_sum(values * weights), tf.reduce_sum(weights))


class ForwardResult(NamedTuple):
  """The results of a forward pass.

  Attributes:
    sums: metric -> weighted sum, for each name in Task.metric_names.
    outputs: output name -> [B, ...], from which predictions and metrics of a whole dataset are computed. May be empty.
  """

  sums: dict[str, WeightedSum]
  outputs: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStage:
  """A part of the training with its own data and settings. Most tasks train in one stage.

  Attributes:
    until: the share of all steps at which the stage ends, 0 < until <= 1.
    model_config: the model as this stage trains it. Its depth and dropout may differ from the task's model_config.
    data: the data.
    train_batch_size: number of sequences per update; None for the run's train_batch_size.
    settings: settings of the data that affect training, as JSON values; config.json records them. {} if the run is not
      divided into stages.
  """

  until: float
  model_config: ModelConfig
  data: Dataset
  train_batch_size: int | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def is_of_divided_run(self) -> bool:
    """Whether the run is divided into stages: its settings list one or more."""
    return bool(self.settings)


class ExampleSets:
  """The examples of a fine-tuning task: each split is tokenized once, or read from the cache, and becomes a dataset.

  Args:
    name: the name of the task.
    data: the data half, which has the rows.
    featurizer: tokenizes a chunk of rows. It must be picklable, and its module must not import TensorFlow, because
      worker processes call it.
    model_config: the model, whose ids and segments are checked.
    settings: the settings of the featurizer, apart from the vocabulary and max_seq_length, for the key of the cache.
    report: called with a split and its examples when they were made; it may print warnings.
    cut_remedy: a remedy for texts longer than max_seq_length, besides a larger max_seq_length; "" if there is none.
    **batch_options: see ExampleDataset.

  Attributes:
    featurizer, settings: see above.
  """

  def __init__(
    self,
    name: str,
    data: FinetuningData,
    featurizer: Callable[[Any], TokenizedExamples],
    model_config: ModelConfig,
    *,
    settings: Mapping[str, Any],
    report: Callable[[str, TokenizedExamples], None] | None = None,
    cut_remedy: str = "",
    **batch_options: Any,
  ):
    self.featurizer, self.settings = featurizer, settings
    self._name, self._data, self._model_config, self._batch_options = name, data, model_config, batch_options
    self._report, self._cut_remedy = report, cut_remedy
    self._datasets: dict[str, ExampleDataset] = {}

  def examples(self, split: str) -> TokenizedExamples:
    """Returns the tokenized examples of a split."""
    return self.dataset(split).examples

  def dataset(self, split: str) -> ExampleDataset:
    """Returns the dataset of a split.

    Raises:
      UserError: the data cannot be read, or the model has no embedding for an id or a segment.
    """
    if split not in self._datasets:
      data, config = self._data, self._data.config
      content = data.content(split)
      cache_key = {
        "task": self._name,
        "split": split,
        "files": [file.sha256 for file in content.files],
        "max_seq_length": config.max_seq_length,
        **data.checkpoint_settings(),
        **data.row_settings(split),
        **self.settings,
      }
      rows, name = data.rows(split), f"{self._name}-{split}"
      examples = make_examples(
        rows, self.featurizer, name=name, key=cache_key, cache_dir=config.cache_dir, num_processes=config.num_processes
      )
      self._check_ids(split, examples)
      self._describe_texts(split, examples)
      if self._report is not None:
        self._report(split, examples)
      length = config.max_seq_length if config.pad_to_max_length else None
      self._datasets[split] = ExampleDataset(
        examples, f"{self._name} ({split})", content=content, length=length, **self._batch_options
      )
    return self._datasets[split]

  def summary(self, split: str) -> dict[str, Any]:
    """Describes the tokens of a split, as JSON values: how many a sequence has, and the share that is <unk>."""
    examples, data = self.examples(split), self._data
    # Of SQuAD, only questions are cut, which are no longer than a window.
    cut_tokens = np.zeros(0) if "max_query_length" in self.settings else examples.cut_tokens
    lengths = examples.longest_sequences + (cut_tokens if len(cut_tokens) else 0)
    share = unknown_share(data.tokenizer, examples.input_ids)
    texts = data.texts_of(data.rows(split)[:NUM_SAMPLE_ROWS]) if share else ()
    return {
      "tokens": {"median": float(np.median(lengths)), "greatest": int(lengths.max())},
      "longer_than_max_seq_length": int(np.count_nonzero(cut_tokens)),
      "unknown_tokens": {"share": share, "characters": unknown_characters(data.tokenizer, texts)},
    }

  def _describe_texts(self, split: str, examples: TokenizedExamples) -> None:
    """Logs once how many windows there are, how much is cut off, and whether the vocabulary lacks characters."""
    data, source = self._data, self._data.source_names(split)
    source += f" ({split})" if len(data.splits_made_of(split)) > 1 else ""  # rows were held out
    if source in data.described:
      return
    data.described.add(source)
    if "max_windows" in self.settings:
      num_windows = counted(len(examples.sequence_lengths), "window", ",")
      log(f"{source}: {counted(examples.num_examples, 'text', ',')} in {num_windows}")
    if np.any(examples.cut_tokens):
      groups = examples.labels.get(self._batch_options.get("group_label", ""), np.arange(examples.num_examples))
      cut_tokens = examples.cut_tokens[np.unique(groups, return_index=True)[1]]  # a question counts once
      log(cut_warning(source, cut_tokens, *self._limit_and_remedy(examples)))
    share = unknown_share(data.tokenizer, examples.input_ids)
    texts = data.texts_of(data.rows(split)[:NUM_SAMPLE_ROWS])
    for line in unknown_warnings(source, share, data.tokenizer, texts):
      log(line)

  def _limit_and_remedy(self, examples: TokenizedExamples) -> tuple[str, str]:
    """Returns the limit that some texts exceed, and how to read more of their tokens."""
    settings, max_seq_length = self.settings, self._data.config.max_seq_length
    if limit := settings.get("max_query_length"):
      longest = limit + np.max(examples.cut_tokens)
      return f"max_query_length={limit}", f"shorten these questions, or give --max_query_length={longest}"
    if "max_windows" in settings:
      step = min(settings["doc_stride"], max_seq_length - 2)  # between windows, which also have [CLS] and [SEP]
      needed_windows = np.max(examples.sequence_counts + -(-examples.cut_tokens // step))
      return f"{settings['max_windows']} windows", f"--max_windows={needed_windows} reads all tokens"
    positions = self._model_config.max_position_embeddings
    longest = min(positions, np.max(examples.longest_sequences + examples.cut_tokens))
    longer = f"training with --max_seq_length={longest} keeps more of them" if longest > max_seq_length else ""
    remedies = filter(None, (longer, self._cut_remedy))
    remedy = " and ".join(remedies) or f"the model has {positions} positions: shorten them, or train weights with more"
    return f"max_seq_length={max_seq_length}", remedy

  def _check_ids(self, split: str, examples: TokenizedExamples) -> None:
    """Raises UserError if the model has no embedding for an id or a segment. A GPU or TPU would not report that."""
    ids, model, data = examples.input_ids, self._model_config, self._data
    source = f"{data.source_names(split)}: the {split} set"
    if ids.size and not 0 <= ids.min() <= ids.max() < model.vocab_size:
      raise UserError(
        f"{source} has ids from {ids.min()} to {ids.max()}, the model has {model.vocab_size}: give the vocabulary of "
        f"the model, and delete the features in {data.config.cache_dir}"
      )
    if model.type_vocab_size < 2 and examples.has_second_segments:
      raise UserError(
        f"{source} has pairs of texts, and the model has one type of segment: give a model with --type_vocab_size=2"
      )


class Task(abc.ABC):
  """A task that models are trained for: the model, its data, its losses, its metrics and its predictions.

  A fine-tuning task is made of its data half, and sets `sets`. Several methods have defaults that use these two;
  pretraining, which has neither, defines them itself.

  Args:
    model_config: the model's config.
    data: the data half of a fine-tuning task.

  Attributes:
    config: the task's flags.
    data: see above.
    sets: the tokenized examples and datasets of a fine-tuning task.
    name: the name in the registry and in config.json.
    head_weights: prefixes of the names that the weights of a fine-tuning task's head have in checkpoints.
    best_metric: the metric by which --select_checkpoint=best compares checkpoints.
    higher_is_better: whether a checkpoint with a larger best_metric is better.
    best_loss: the loss that decides between checkpoints with the same best_metric: the lower one is better.
    new_weights: prefixes of model weights that are newly initialized if --init_checkpoint does not have them.
    reinitialized_weights: prefixes of model weights that are newly initialized even if --init_checkpoint has them.
    ignored_weights: prefixes of weights that --init_checkpoint may have and the model does not have.
    output_labels: the labels of the outputs of a classifier or tagger, in their order.
    unused_weights: prefixes of model weights that the task does not use. If a checkpoint lacks them, they are set to
      zero.
    predicts_in_batches: whether predict runs the model on batches of --eval_batch_size.
    predictions_extension: the extension of a predictions file.
    needs_initial_weights: whether training needs --init_checkpoint, or --from_scratch for random weights.
    runs_flag: the flag that gives the number of runs, if there are several.
    usual_steps, usual_epochs: training usually needs at least this many steps and epochs.
    usual_rates: optimizer -> the lowest usual, a good and the highest usual learning rate; {}: those of fine-tuning.

  Raises:
    UserError: the vocabulary or max_seq_length does not fit the model, or the training file has no labels.
  """

  config: Config
  data: Any  # FinetuningData, or PretrainingData
  sets: ExampleSets
  name: str
  best_metric: str
  higher_is_better: bool = True
  best_loss: str = LOSS
  head_weights: Sequence[str] = ("output_weights", "output_bias")
  new_weights: Sequence[str] = ()
  reinitialized_weights: Sequence[str] = ()
  ignored_weights: Sequence[str] = ()
  output_labels: Sequence[str] = ()
  unused_weights: Sequence[str] = ()
  predicts_in_batches = True
  predictions_extension = ".tsv"
  needs_initial_weights = False
  runs_flag = "num_runs"
  usual_steps: int = USUAL_STEPS
  usual_epochs: int = USUAL_EPOCHS
  usual_rates: Mapping[str, tuple[float, float, float]] = {}
  _latest: tuple[DatasetOutputs, Any] | None = None  # the last argument and result of make_predictions

  def __init__(self, model_config: ModelConfig, data: FinetuningData | None = None):
    self.model_config = model_config
    if data is not None:
      data.check_model(model_config)
      data.find_labels()
      self.data, self.config = data, data.config
      self.needs_initial_weights = True
      self.new_weights = self.head_weights
      self.reinitialized_weights = self.head_weights if data.config.fresh_head else ()
      names = [name for head in heads(model_config).values() for name in head.shapes]
      self.ignored_weights = [name for name in names if not name.startswith(tuple(self.head_weights))]

  def settings(self) -> dict[str, Any]:
    """Returns the task's settings that affect training, as JSON values. A resumed run must have the same ones."""
    return self.config.training_settings() | self.checkpoint_settings()

  def all_settings(self) -> dict[str, Any]:
    """Returns the section "data" of config.json: settings(), and the settings that later commands may change."""
    return self.data.config.reusable_values() | self.settings()

  def vocabulary(self) -> VocabularyId | None:
    """Returns the vocabulary of the token ids, or None if it is not known."""
    return self.data.vocabulary()

  def checkpoint_settings(self) -> dict[str, Any]:
    """Returns the settings that must match before a checkpoint is used, such as the labels and the vocabulary.

    A command cannot evaluate or predict with a checkpoint of a run if one of these settings differs from the run's.
    """
    return self.data.checkpoint_settings()

  @abc.abstractmethod
  def build_model(self) -> keras.Model:
    """Makes the model, with its weights created.

    Returns: a model with a method `named_weights()`, which maps the weights' names in checkpoints to the variables.
    """

  def saved_variables(self, model: keras.Model) -> dict[str, tf.Variable]:
    """Returns what a checkpoint holds of a model by name: its weights, and other variables that its output needs."""
    return dict(model.named_weights())

  def trained_weights(self, model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the weights that training changes, by name: with --freeze_encoder only the pooler's and the head's."""
    weights = model.named_weights()
    freezes_encoder = isinstance(self.data, FinetuningData) and self.data.config.freeze_encoder
    frozen = ("bert/embeddings/", "bert/encoder/") if freezes_encoder else ()
    return {name: variable for name, variable in weights.items() if not name.startswith(frozen)}

  def start_training(self, model: keras.Model, newly_initialized: Collection[str]) -> None:
    """Prepares the initial weights of a new run for its training data.

    Args:
      model: the model with these weights.
      newly_initialized: the names of the weights that do not come from --init_checkpoint.
    """
    del model, newly_initialized

  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads and checks all files that a command needs, so that a bad file is reported before hours of training.

    This is called before the model is built, and may be called again. Files that have been read are kept in memory.

    Args:
      train: whether the command trains.
      evaluate: whether the command evaluates, after training or during it.
      predict: whether the command predicts.
    Raises:
      UserError: a file is missing or cannot be used; the message names the file, the line and the remedy.
    """
    self.data.read(train=train, evaluate=evaluate, predict=predict)

  def tokenize(self) -> None:
    """Tokenizes the training data, or reads its cached features. Other sets are tokenized when they are first used."""
    self.sets.examples(TRAIN)

  def training_data(self) -> Dataset:
    """Returns the dataset to train on. If the run has several stages, it is the dataset of the last one."""
    return self.sets.dataset(TRAIN)

  def training_stages(self) -> Sequence[TrainingStage]:
    """Returns the stages of training in order. The last one ends at the last step and trains the model of the task."""
    return [TrainingStage(until=1.0, model_config=self.model_config, data=self.training_data())]

  def evaluation_data(self) -> dict[str, Dataset]:
    """Returns split -> dataset to evaluate on.

    If there are several splits, the names of their metrics begin with the name of the split: `matched_accuracy`.

    Raises:
      UserError: the task has no such split, or its data cannot be read.
    """
    splits = self.data.splits_of_command(train=False, evaluate=True, predict=False)
    return {split: self.sets.dataset(split) for split in splits}

  def loss_names(self) -> Sequence[str]:
    """Returns the names of the terms of the loss, which are metrics, too. The loss is the sum of the terms."""
    return (LOSS,)

  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the weight of each term of the loss in this batch: the number of its tokens or examples.

    A term is the mean over the global batch: its sum, divided by its weight. Sums and weights are added up over all
    replicas and micro-batches, so the loss does not depend on how the batch is divided into them.

    Args:
      batch: feature name -> [B, ...].
    Returns: name of the term -> its weight, a float32 scalar. By default it is the number of examples.
    """
    return {LOSS: tf.reduce_sum(batch[EXAMPLE_WEIGHT])}

  @abc.abstractmethod
  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the losses, metrics and outputs of a batch.

    Args:
      model: the model of build_model.
      batch: feature name -> [B, ...].
      training: whether dropout is applied.
      seed: int32 or int64 [2], the seed of dropout; None for a random one.
    Returns: the weighted sums of losses and metrics, and the outputs of each example.
    """

  def metric_names(self) -> Sequence[str]:
    """Returns the names of the metrics that forward computes. Others are computed from the outputs of all examples."""
    return (LOSS,)

  def with_loss(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Adds the metric "loss", the sum of the terms of the loss, to the means of metric_names."""
    return {LOSS: sum(metrics[name] for name in self.loss_names()), **metrics}

  def guessing_loss(self) -> float | None:
    """Returns the training loss of a model that ignores its input; None if it is not known."""
    return None

  def watch_settings(self, config: RunConfig) -> WatchSettings:
    """Returns how a run with these settings is watched. Runs without masked tokens are not watched."""
    del config
    return WatchSettings(Means(math.nan, math.nan))

  def make_predictions(self, split: str, outputs: DatasetOutputs) -> Any:
    """Converts outputs to predictions, see predictions. A fine-tuning task may define it."""
    raise NotImplementedError

  def predictions(self, split: str, outputs: DatasetOutputs) -> Any:
    """Returns the predictions for a split. Those of the last outputs are kept, because metrics and files share them.

    Args:
      split: the name of the split.
      outputs: the outputs of forward, for all examples of the split or for some.
    """
    if self._latest is None or self._latest[0] is not outputs:
      self._latest = outputs, self.make_predictions(split, outputs)
    return self._latest[1]

  def test_predictions(self, run_model: Callable[[Dataset], DatasetOutputs]) -> Any:
    """Returns the predictions for the test set."""
    return self.predictions(TEST, run_model(self.sets.dataset(TEST)))

  def evaluation_metrics(self, split: str, outputs: DatasetOutputs) -> dict[str, float]:
    """Computes metrics that are not means over examples or tokens, such as F1, and baselines to compare results with.

    Args:
      split: the name of the split.
      outputs: the outputs of forward for all examples of the split.
    Returns: metric -> value.
    """
    del split, outputs
    return {}

  def metrics_from_means(self, means: Mapping[str, float]) -> dict[str, float]:
    """Computes metrics of an evaluation that are functions of the means over its examples, such as a perplexity.

    Args:
      means: metric -> mean, for the metrics of metric_names.
    Returns: metric -> value.
    """
    del means
    return {}

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Writes files about an evaluation: predictions, mistakes, pictures.

    Args:
      split: the name of the split.
      outputs: the outputs of forward for all examples of the split.
      directory: where to write.
    """
    del split, outputs, directory

  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """Returns the paths of the files that predict writes. The first one is the file of predictions.

    By default it is the only one: predictions_NAME in `directory`, with the task's extension.

    Args: see predict.
    """
    name = f"predictions_{self.data.predictions_name()}{self.predictions_extension}"
    return [predictions_file or files.join(directory, name)]

  def predict(
    self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Predicts the test sets, and writes the predictions. By default it is one test set of a fine-tuning task.

    Args:
      model: the model, with its weights loaded.
      run_model: computes the outputs of forward for all examples of a dataset.
      directory: where to write.
      predictions_file: the file to write the predictions to, instead of the task's usual one in `directory`. Other
        files that belong to the predictions are written beside it.
    Returns: the paths of the files.
    Raises:
      UserError: predictions_file is given, and the task has several test sets.
    """
    del model
    paths = self.prediction_files(directory, predictions_file)
    self.write_test_predictions(self.test_predictions(run_model), paths)
    return paths

  def write_test_predictions(self, predictions: Any, paths: Sequence[str]) -> None:
    """Writes the predictions for the test set to the paths of prediction_files."""
    raise NotImplementedError

  def prediction_rows(self, data: TableData) -> Rows:
    """Converts data in memory to rows that can be predicted.

    Args:
      data: the texts or questions to predict (see albert.data.rows.rows_of).
    Raises:
      UserError: a column is missing.
    """
    raise NotImplementedError

  def with_data(self: _TaskT, split: str, source: DataSource, *, cache: bool = True) -> _TaskT:
    """Returns a copy of the task that has other data for a split.

    Args:
      split: "train", "dev" or "test".
      source: rows in memory, with the columns that the task's files have; or the path of a file.
      cache: whether the tokenized data may be cached on disk.
    """
    return type(self)(self.model_config, self.data.with_source(split, source, cache=cache))

  def of_run(self: _TaskT, index: int) -> _TaskT:
    """Returns the task of one of several runs, counted from 0: this task, unless each run has other data."""
    del index
    return self

  def finish_runs(self, run_dirs: Sequence[str], output_dir: str) -> None:
    """Combines the predictions of several finished runs, whose directories are run_dirs. By default nothing is done."""
    del run_dirs, output_dir

  def answers(self, model: keras.Model, run_model: Callable[[Dataset], DatasetOutputs]) -> list[Any]:
    """Predicts the test sets, and returns the answers without writing them. By default it is one test set.

    Args:
      model: the model, with its weights loaded.
      run_model: computes the outputs of forward for all examples of a dataset.
    Returns: an answer for each row or question, in order (see albert.tasks.answers).
    """
    del model
    return self.make_answers(self.test_predictions(run_model))

  def make_answers(self, predictions: Any) -> list[Any]:
    """Converts the predictions for the test set to answers."""
    raise NotImplementedError

  def read_run(self, output_dir: str) -> None:
    """Reads what evaluations of a run have stored for its predictions, such as thresholds.

    It is called before the task evaluates or predicts.

    Args:
      output_dir: the directory of the run. It may not exist.
    Raises:
      UserError: a file is damaged.
    """
    del output_dir

  def head_settings(self) -> dict[str, Any]:
    """Returns the settings that must be the same in another run before the head of its checkpoint is reused.

    Returns: key in config.json -> value. The key is "task" or one of the section "data".
    """
    return {"task": self.name} if self.new_weights else {}

  def data_records(self) -> dict[str, str]:
    """Returns files about the data, such as which rows are held out, for a new run: name -> text."""
    if not isinstance(self.data, FinetuningData):
      return {}
    # Only the training set is tokenized before the first step.
    summaries = self.data.summaries()
    summaries[TRAIN] |= self.sets.summary(TRAIN)
    return {output_files.DATA_SUMMARY: json.dumps(summaries, indent=2, ensure_ascii=False) + "\n"}

  def files_to_keep(self) -> dict[str, str]:
    """Returns the files to copy into the output_dir because its checkpoints are useless without them.

    Returns: name in the output_dir -> path of the file to copy, such as the vocabulary.
    """
    path = self.data.config.spm_model_file
    return vocabulary_copies(path) if path else {}
