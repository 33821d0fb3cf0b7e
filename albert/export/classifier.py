"""Serves models with a linear head on the pooled output: classification, regression and multiple choice.

They are those that `albert.tasks.glue` and `albert.tasks.race` train.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert.data.examples import OPTION_MASK
from albert.errors import UserError
from albert.export.checkpoint import ExportCheckpoint, SelectedForm
from albert.export.companion_files import NamedArrays, RequestField
from albert.export.network import TokenBatch, TokenLayout, cut_into_windows, windows_by_text
from albert.export.served_model import AnswerTensors, ServedModel, load_linear_head, log_odds_of
from albert.metrics.classification import ERRORS
from albert.models.multiple_choice import pool_windows
from albert.tasks.glue.flags import PLAIN, WINDOWS
from albert.tasks.glue.results import thresholds_of_run
from albert.tasks.glue.specs import CUSTOM, canonical_name, make_spec
from albert.tokenization.packing_graph import first_tokens, last_tokens, pack_pair, pack_single

# B batch, K windows of a text or options of a question (the largest number in the batch), S sequence, C classes.

TEXT, TEXT_A, TEXT_B = "text", "text_a", "text_b"
ARTICLE, QUESTION, OPTIONS = "article", "question", "options"
_NUM_SPECIAL_TOKENS = 3  # of a question with an option: [CLS] and two [SEP]
# The logit of an option that only pads a shorter list of options.
_MISSING_LOGIT = -1e9


def text_fields(meanings: Sequence[str]) -> list[RequestField]:
  """The request fields for a single text (`text`) or a pair (`text_a`, `text_b`), from the description of each."""
  names = [TEXT] if len(meanings) == 1 else [TEXT_A, TEXT_B]
  return [RequestField(name, meaning) for name, meaning in zip(names, meanings, strict=True)]


class ServedTextModel(ServedModel):
  """Base class of forms whose request is one text or a pair.

  A request becomes [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. Texts that are too long are cut as in training.
  """

  example_texts: ClassVar[tuple[str, str]] = (
    "The film is a quiet triumph, and nobody who sees it will forget its last scene.",
    "A dull story, badly told.",
  )

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Tokenizes texts, string [B], without [CLS] and [SEP] -> int32 [B, (number of tokens)]."""
    return self.tokenizer.tokenize(texts)

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    first, *second = (self.tokenize(texts[field.name]) for field in self.fields)
    length, special_ids = self.max_seq_length, self.tokenizer.special_ids
    if second:
      return TokenBatch(**pack_pair(first, second[0], length, special_ids))
    return TokenBatch(**pack_single(first, length, special_ids))

  def truncation_note(self) -> str:
    length = self.max_seq_length
    if len(self.fields) == 1:
      return f"A text of more than {length} tokens, [CLS] and [SEP] included, is cut at its end."
    return (
      f"A pair of more than {length} tokens, [CLS] and [SEP] included, is cut: the longer of the two texts loses its "
      "last token until the pair fits."
    )

  def examples(self) -> list[dict[str, Any]]:
    names = [field.name for field in self.fields]
    return [
      dict(zip(names, texts[: len(names)], strict=True)) for texts in (self.example_texts, self.example_texts[::-1])
    ]


class _PooledHeadModel(ServedTextModel):
  """Base class of classification and regression: a linear head on the pooled output."""

  head = "classifier"
  evaluation_settings: ClassVar[Mapping[str, Any]] = {"eval_share": 0.0}  # the file is evaluated on, not a part of it

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    self.spec = make_spec(form.config)
    self.labels = self.spec.labels
    self.fields = text_fields([f"{self.spec.name}: {column}" for column in self.spec.formats()[0].texts])
    self._num_outputs = len(self.labels) or 1  # a regression has no labels
    remedy = ": give the task's name or labels that it was trained with (--task_name, --labels)"
    self.output = load_linear_head(checkpoint, self.labels, self.spec.name, remedy)
    self._reads_windows = form.config.long_texts == WINDOWS
    if self._reads_windows:
      self.ids_rank = 3
      self.ids_meaning = "for each window of the text [CLS] part of the text [SEP], then padding"

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Tokenizes texts, see ServedModel.encode; with windows, int32 [B, K, S] for at most K windows of a text."""
    if not self._reads_windows:
      return super().encode(**texts)
    windows = cut_into_windows(
      self.tokenize(texts[TEXT]),
      max_seq_length=self.max_seq_length,
      doc_stride=self.task_config.doc_stride,
      special_ids=self.tokenizer.special_ids,
      max_windows=self.task_config.max_windows,
    )
    return windows_by_text(windows, tf.size(texts[TEXT], tf.int64))

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    logits = self.output(self.encoder.pooled_output(tokens, layout))
    if layout.has_tokens is not None:
      # A text that is all padding has one window of padding.
      is_first = tf.range(tf.shape(layout.has_tokens)[1]) < 1
      shape = [tf.shape(layout.has_tokens)[0], tf.shape(layout.has_tokens)[1], self._num_outputs]
      logits = pool_windows(tf.reshape(logits, shape), layout.has_tokens | is_first, self.task_config.pooling)
    return self._answer(logits)

  @classmethod
  def metric_names(cls, task: Any) -> Sequence[str]:
    """At most three, so that the table of the model card is not too wide."""
    return [name for name in task.spec.metrics if name not in ERRORS][:3]

  @abc.abstractmethod
  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    """Converts the logits of texts, float32 [B, C], to the answers that are numbers."""

  def truncation_note(self) -> str:
    if not self._reads_windows:
      return super().truncation_note()
    config = self.task_config
    return (
      f"A text of more than {self.max_seq_length} tokens is read in overlapping windows of this length, "
      f"[CLS] and [SEP] included, each {config.doc_stride} tokens after the one before it (or fewer, if fewer fit). "
      f"The logits of a text are the {config.pooling} of those of its windows. What does not fit in "
      f"{config.max_windows} windows is cut off."
    )

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Any) -> str | None:
    """See ServedModel.incompatibility: another formulation, or a regression instead of a classification."""
    if config.formulation != PLAIN:
      return (
        f"it was trained with --formulation={config.formulation}, and only --formulation=plain can be served: predict "
        "with --do_predict, or in Python with albert.Estimator.from_run(...).predict(...)"
      )
    if config.task_name or not checkpoint.run:
      if canonical_name(config.task_name) == CUSTOM and not (config.labels or config.regression):
        source = f"{checkpoint.file.flag}={checkpoint.file.path}"
        raise UserError(f"{source}: records no labels: give --labels, in the order of training")
      spec = make_spec(config)
      if spec.is_regression != (cls is ServedRegression):
        return f"{config.task_name} is a {'regression' if spec.is_regression else 'classification'} task"
      if bool(spec.label_separator) != (cls is ServedMultiLabel):
        return "a row may have several labels (--multi_label)" if spec.label_separator else "each row has one label"
    return None


class ServedClassifier(_PooledHeadModel):
  """Serves a classifier: the most probable class and the probabilities of all classes."""

  summary = "classifies a text or a pair of texts"
  answers: ClassVar[Mapping[str, str]] = {
    "label": "the most probable class, string [B]",
    "probabilities": "probability of each class, in the order of assets/labels.txt, float32 [B, C]",
  }

  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    return {"probabilities": tf.nn.softmax(logits)}

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    return add_label(answers, self.labels)


class ServedMultiLabel(_PooledHeadModel):
  """Serves a model of several labels: those whose probability is at least their threshold, and all probabilities."""

  summary = "finds the labels of a text or a pair of texts, any number of them"
  answers: ClassVar[Mapping[str, str]] = {
    "labels": "the labels whose probability is at least their threshold, the most probable first, string [B, C]; the "
    'row is padded with ""',
    "probabilities": "probability of each label, in the order of assets/labels.txt, float32 [B, C]",
  }

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    values = thresholds_of_run(checkpoint.run_dir, form.config.thresholds, self.labels)
    self.thresholds = dict(zip(self.labels, values.tolist(), strict=True))

  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    return {"probabilities": tf.sigmoid(logits)}

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"logits": log_odds_of(answers["probabilities"])}

  @classmethod
  def use_run(cls, task: Any, run_dir: str) -> None:
    """Makes the task use the thresholds of the run instead of choosing some on the data."""
    super().use_run(task, run_dir)
    task.thresholds.chooses = False

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    probabilities, names = answers["probabilities"], tf.constant(list(self.labels))
    is_predicted = probabilities >= tf.constant(list(self.thresholds.values()), tf.float32)
    best = tf.math.top_k(tf.where(is_predicted, probabilities, -1.0), len(self.labels))
    return {"labels": tf.where(best.values >= 0, tf.gather(names, best.indices), ""), **answers}


class ServedRegression(_PooledHeadModel):
  """Serves a regression model: one number for each text or pair."""

  summary = "predicts a number for a text or a pair of texts"
  answers: ClassVar[Mapping[str, str]] = {"value": "the predicted number, float32 [B]"}

  def _answer(self, logits: tf.Tensor) -> AnswerTensors:
    return {"value": logits[:, 0]}

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return {"values": answers["value"]}


def add_label(answers: AnswerTensors, labels: Sequence[str]) -> AnswerTensors:
  """Adds the name of the most probable class (of equally probable ones, the first), as `label`, string [B]."""
  best_class = tf.argmax(answers["probabilities"], axis=-1, output_type=tf.int32)
  return {"label": tf.gather(tf.constant(list(labels)), best_class), **answers}


class ServedMultipleChoice(ServedModel):
  """Serves a multiple-choice model: the most probable option and the probabilities of all options."""

  head = "classifier"
  summary = "answers multiple-choice questions about an article"
  answers: ClassVar[Mapping[str, str]] = {
    "option": "index of the most probable option, from 0, int32 [B]",
    "text": "text of this option (only signature serving_default), string [B]",
    "probabilities": "probability of each option, 0 for options that only pad a shorter list, float32 [B, K]",
  }
  counted_by = OPTIONS
  ids_rank = 3
  ids_meaning = "for each option [CLS] article [SEP] question with the option [SEP], then padding"

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    self.fields = [
      RequestField(ARTICLE, "the text that the question is about"),
      RequestField(QUESTION, 'the question; "_" in it stands for the option'),
      RequestField(OPTIONS, 'the options; "" is not an option, it pads a shorter list', is_list=True),
    ]
    self._max_qa_length = min(form.config.max_qa_length, form.max_seq_length - _NUM_SPECIAL_TOKENS)
    self.output = load_linear_head(checkpoint, (), "multiple choice", "")

  def encode(self, **texts: tf.Tensor) -> TokenBatch:
    """Makes a sequence for each option, int32 [B, K, S]. The sequence of a "" that pads a list is all padding."""
    # Invalid bytes are replaced before texts are joined, because two incomplete characters may join to a valid one.
    question = tf.strings.unicode_transcode(texts[QUESTION], "UTF-8", "UTF-8", errors="replace")
    options = tf.strings.unicode_transcode(texts[OPTIONS], "UTF-8", "UTF-8", errors="replace")
    num_questions, num_options = tf.unstack(tf.shape(options))
    full_article_ids = self.tokenizer.tokenize(texts[ARTICLE])
    question_indices = tf.repeat(tf.range(num_questions), tf.fill([num_questions], num_options))  # [B * K]
    flat_options = tf.reshape(options, [-1])
    answered_questions = insert_options(tf.gather(question, question_indices), flat_options)
    question_ids = last_tokens(self.tokenizer.tokenize(answered_questions), tf.constant(self._max_qa_length, tf.int64))
    # The question with the option is kept; the article fills the rest of the sequence.
    article_lengths = self.max_seq_length - _NUM_SPECIAL_TOKENS - question_ids.row_lengths()
    article_ids = first_tokens(tf.gather(full_article_ids, question_indices), article_lengths)
    tokens = TokenBatch(**pack_pair(article_ids, question_ids, self.max_seq_length, self.tokenizer.special_ids))
    is_option = tf.cast(tf.strings.length(flat_options) > 0, tf.int32)
    tokens = tokens._replace(input_mask=tokens.input_mask * is_option[:, tf.newaxis])
    return TokenBatch(*(tf.reshape(values, [num_questions, num_options, self.max_seq_length]) for values in tokens))

  def answer_texts(self, **texts: tf.Tensor) -> AnswerTensors:
    """Answers texts, see ServedModel.answer_texts. `text` is the text of the most probable option."""
    answers = super().answer_texts(**texts)
    return answers | {"text": tf.gather(texts[OPTIONS], answers["option"], batch_dims=1)}

  def answer_tokens(self, tokens: TokenBatch) -> AnswerTensors:
    """Answers ids, int32 [B, K, S]."""
    message = "options: give at least one for each question"
    tf.debugging.assert_positive(tf.shape(tokens.input_ids)[1], message=message)
    return super().answer_tokens(tokens)

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    is_option = layout.has_tokens  # [B, K]
    assert is_option is not None
    logits = tf.reshape(self.output(self.encoder.pooled_output(tokens, layout)), tf.shape(is_option))
    logits = tf.where(is_option, logits, _MISSING_LOGIT)
    return {
      "option": tf.argmax(logits, axis=1, output_type=tf.int32),
      "probabilities": tf.where(is_option, tf.nn.softmax(logits), 0.0),
    }

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    return super().training_outputs(answers, batch) | {OPTION_MASK: batch[OPTION_MASK]}

  def truncation_note(self) -> str:
    return (
      f"Each option is a sequence of at most {self.max_seq_length} tokens: the last {self._max_qa_length} of "
      "the question with the option, and the beginning of the article as far as it fits."
    )

  def examples(self) -> list[dict[str, Any]]:
    article = (
      "Every morning old Mr Brown walked to the harbour to feed the gulls. Last winter he fell ill, and for two weeks "
      "his neighbour's daughter went in his place."
    )
    return [
      {
        ARTICLE: article,
        QUESTION: "Who fed the gulls while Mr Brown was ill?",
        OPTIONS: ["A sailor.", "The daughter of his neighbour.", "Nobody.", "His wife."],
      },
      {ARTICLE: article, QUESTION: "Mr Brown went to the harbour every _.", OPTIONS: ["evening", "morning", "winter"]},
    ]


def insert_options(questions: tf.Tensor, options: tf.Tensor) -> tf.Tensor:
  """Inserts each option into the blank of its question, or appends it if the question has no blank.

  The texts are the same as those of `albert.tasks.race.features.with_option`.

  Args:
    questions, options: string [N].
  Returns: string [N].
  """
  question_parts = tf.strings.split(tf.strings.regex_replace(questions, "_+", "_"), sep="_")
  question_indices = question_parts.value_rowids()  # of each part
  # True for every part of a question but the first one.
  follows_blank = tf.ragged.range(question_parts.row_lengths()).flat_values > 0
  parts_with_option = tf.strings.join(
    [tf.where(follows_blank, tf.gather(options, question_indices), ""), question_parts.flat_values]
  )
  filled_in = tf.strings.unsorted_segment_join(parts_with_option, question_indices, num_segments=tf.shape(questions)[0])
  has_blank = question_parts.row_lengths() > 1
  return tf.where(has_blank, filled_in, tf.strings.join([questions, options], separator=" "))
