"""Serves pretrained models: filling masks, sentence order, and embeddings (of any checkpoint)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.data.schema import INPUT_IDS
from albert.embed.sentence_vectors import read_sentence_vectors
from albert.export.checkpoint import ExportCheckpoint, SelectedForm
from albert.export.classifier import ServedTextModel, add_label, text_fields
from albert.export.companion_files import NamedArrays
from albert.export.network import Dense, LayerNorm, LinearHead, TokenBatch, TokenLayout, Weights, make_constant
from albert.export.served_model import AnswerTensors
from albert.models.layers import ACTIVATIONS
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tokenization.graph import WHITE_SPACE, starts_with_space
from albert.tokenization.tokenizer import load_tokenizer

# B batch, S sequence, M largest number of masks in a text of the batch, K candidates, P masked tokens of a sequence in
# the data of --eval_file, H hidden size, V vocabulary size.

MASK = "[MASK]"


class MaskedLMHead(tf.Module):
  """The masked language model: float32 [B, M, H] -> logits over the vocabulary, [B, M, V].

  Args:
    config: the model's config.
    weights: weights by their names in the original code.
    word_embeddings: the embedding table [V, E], which is also the output matrix.
  """

  def __init__(self, config: ModelConfig, weights: Weights, word_embeddings: tf.Variable):
    super().__init__(name="predictions")
    self._config = config
    self._activation = ACTIVATIONS[config.hidden_act].inference
    self.transform = Dense(weights, "cls/predictions/transform/dense")
    self.layer_norm = LayerNorm(weights, "cls/predictions/transform/LayerNorm", config.layer_norm_eps)
    self.output_bias = make_constant(weights["cls/predictions/output_bias"], "output_bias")
    self.word_embeddings = word_embeddings

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(x, [-1, self._config.hidden_size])
    flat = self.layer_norm(self._activation(self.transform(flat)))
    logits = tf.nn.bias_add(tf.matmul(flat, self.word_embeddings, transpose_b=True), self.output_bias)
    return tf.reshape(logits, [tf.shape(x)[0], tf.shape(x)[1], self._config.vocab_size])


class _PretrainingForm(ServedTextModel):
  """Base class of the forms whose --eval_file are the TFRecord files of pretraining. Their metric is an accuracy."""

  @classmethod
  def evaluation_config(cls, form: SelectedForm, eval_file: str) -> PretrainingConfig:
    tokenizer = form.tokenizer_config
    return PretrainingConfig(
      eval_input_file=eval_file,
      spm_model_file=tokenizer.model_file,
      do_lower_case=tokenizer.do_lower_case,
      keep_accents=tokenizer.keep_accents,
      sentence_prediction=form.config.sentence_prediction,
    )

  @classmethod
  def evaluation_metrics(cls, task: Any, split: str, outputs: Any) -> dict[str, float]:
    return {cls.metric_names(task)[0]: float(outputs["num_correct"].sum() / max(outputs["num_predicted"].sum(), 1))}


class ServedFillMask(_PretrainingForm):
  """Serves the masked language model: the most probable tokens for each [MASK]."""

  head = "masked_lm"
  summary = "predicts the token at each [MASK] of a text"
  example_texts = (f"The {MASK} of France is Paris.", f"She opened the {MASK} and looked at the {MASK} behind it.")
  answers: ClassVar[Mapping[str, str]] = {
    "tokens": "the most probable tokens as text, the best first, string [B, M, K]",
    "pieces": "the same tokens as in the vocabulary (▁ or Ġ: a space, ##: inside a word), string [B, M, K]",
    "ids": "their ids, int32 [B, M, K]",
    "probabilities": "their probabilities, float32 [B, M, K]",
    "num_masks": "number of masks in each text after it was cut, int32 [B]; the rest of the other answers is padding",
  }
  counted_by = "num_masks"
  uses_pooler = False

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    self.fields = text_fields([f"a text with {MASK} in place of each token to predict"])
    self.output = MaskedLMHead(checkpoint.config, checkpoint.head_weights("masked_lm"), self.encoder.word_embeddings)
    self._pieces = self.tokenizer.reference.pieces
    self._top_k = min(form.top_k, len(self._pieces))
    self._ids_inside_word = self.tokenizer.reference.vocabulary.ids_inside_word

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Tokenizes texts in which [MASK] stands for one token, as `albert.tokenization.tokenizer.encode_with_masks`."""
    text_parts = tf.strings.split(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace"), sep=MASK)
    follows_mask = tf.ragged.range(text_parts.row_lengths()).flat_values > 0  # every part of a text but the first one
    # A part that another one of its text follows ends before a mask, which stands for the space before it, too.
    precedes_mask = tf.concat([follows_mask[1:], [False]], axis=0)[: tf.size(follows_mask)]
    stripped = tf.strings.regex_replace(text_parts.flat_values, f"[{WHITE_SPACE}]+$", "")
    ids = self.tokenizer.tokenize(tf.where(precedes_mask, stripped, text_parts.flat_values))
    # A part that follows a mask without a space, such as ".", does not start a word. Its first token is replaced by the
    # same token without ▁; a ▁ alone, whose replacement is -1, is dropped.
    continues_word = follows_mask & ~starts_with_space(text_parts.flat_values)
    first_indices = tf.boolean_mask(ids.row_starts(), continues_word & (ids.row_lengths() > 0))
    replacements = tf.gather(tf.constant(self._ids_inside_word), tf.gather(ids.flat_values, first_indices))
    flat_ids = tf.tensor_scatter_nd_update(ids.flat_values, first_indices[:, tf.newaxis], replacements)
    ids = tf.ragged.boolean_mask(ids.with_flat_values(flat_ids), ids.with_flat_values(flat_ids >= 0))
    num_masks = tf.cast(follows_mask, tf.int64)
    masks = tf.RaggedTensor.from_row_lengths(
      tf.fill([tf.reduce_sum(num_masks)], self.tokenizer.special_ids.mask), num_masks, validate=False
    )
    ids = tf.concat([masks, ids], axis=1)  # one row for each part, with the mask before it
    text_splits = tf.gather(ids.row_splits, text_parts.row_splits)  # joins the parts of each text to one row
    return tf.RaggedTensor.from_row_splits(ids.flat_values, text_splits, validate=False)

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    is_mask = (tokens.input_ids == self.tokenizer.special_ids.mask) & (tokens.input_mask > 0)
    num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)  # [B]
    max_masks = tf.reduce_max(tf.concat([num_masks, [0]], axis=0))
    length = tf.shape(is_mask)[1]
    # At least one position is computed, because TFLite and ONNX cannot compute empty tensors.
    num_computed = tf.maximum(max_masks, 1)
    # The masks are found with top_k, an op that TFLite and ONNX have. Sorted by their distances from the end, the
    # largest first, the masks are in the order of the text.
    distances = tf.where(is_mask, length - tf.range(length), 0)  # 0 where there is no mask
    distances = tf.math.top_k(distances, num_computed).values  # [B, M]
    positions = tf.where(distances > 0, length - distances, 0)
    logits = self.output(self.encoder.outputs_at(tokens, positions, layout))
    probabilities = tf.nn.softmax(logits)
    if len(self._pieces) < logits.shape[-1]:  # the embeddings are padded
      probabilities = probabilities[:, :, : len(self._pieces)]
    best = tf.math.top_k(probabilities, self._top_k)
    is_real = tf.expand_dims(distances > 0, 2)
    return {
      "ids": tf.where(is_real, best.indices, 0)[:, :max_masks],
      "probabilities": tf.where(is_real, best.values, 0.0)[:, :max_masks],
      "num_masks": num_masks,
    }

  @classmethod
  def metric_names(cls, task: Any) -> Sequence[str]:
    """The accuracy of the most probable token, with [MASK] at every masked position.

    In the TFRecord files a tenth of the masked tokens is unchanged, and a tenth is replaced by a random token. A served
    model predicts only at [MASK].
    """
    from albert.tasks.pretraining.model import MASKED_LM_ACCURACY

    return (MASKED_LM_ACCURACY,)

  @classmethod
  def evaluation_inputs(cls, batch: NamedArrays, form: SelectedForm) -> dict[str, np.ndarray]:
    ids = batch[INPUT_IDS].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    ids[rows, batch["masked_lm_positions"][rows, columns]] = load_tokenizer(form.tokenizer_config).special_ids.mask
    return super().evaluation_inputs({**batch, INPUT_IDS: ids}, form)

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    """Counts the tokens that the most probable candidate is."""
    positions, is_predicted = batch["masked_lm_positions"], batch["masked_lm_weights"] > 0  # [B, P]
    # An answer holds the masks in the order of their positions: the number of the mask at each position, [B, P].
    numbers = np.sum((positions[:, np.newaxis] < positions[..., np.newaxis]) & is_predicted[:, np.newaxis], axis=2)
    predicted = np.take_along_axis(answers["ids"][:, :, 0], numbers * is_predicted, axis=1)
    is_correct = (predicted == batch["masked_lm_ids"]) & is_predicted
    return {"num_correct": is_correct.sum(axis=1), "num_predicted": is_predicted.sum(axis=1)}

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    is_real = answers["probabilities"] > 0

    def look_up(names: Sequence[str]) -> tf.Tensor:
      """The name of each id; "" where an answer is padded."""
      table = tf.constant([name.encode() for name in names])
      return tf.where(is_real, tf.gather(table, answers["ids"]), "")

    return {
      "tokens": look_up(self.tokenizer.reference.vocabulary.piece_texts()),
      "pieces": look_up(self._pieces),
      **answers,
    }


class ServedSentenceOrder(_PretrainingForm):
  """Serves sentence-order prediction, or next-sentence prediction if the model was pretrained with it."""

  head = "sentence"
  example_texts = ("She opened the letter with great care.", "Then she read it aloud to everyone in the room.")
  summary = "predicts whether two consecutive texts are in their original order"
  answers: ClassVar[Mapping[str, str]] = {
    "label": "the more probable class, string [B]",
    "probabilities": "probability of each class, in the order of assets/labels.txt, float32 [B, 2]",
  }

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    self.fields = text_fields(["the first text", "the second text"])
    self.labels = ("in_order", "swapped")
    if form.config.sentence_prediction == "nsp":
      self.labels = ("next", "random")
      self.summary = "predicts whether the second text continues the first one or comes from another document"
    self.output = LinearHead(checkpoint.head_weights("sentence"), "cls/seq_relationship/")

  @classmethod
  def incompatibility(cls, checkpoint: ExportCheckpoint, config: Any) -> str | None:
    """See ServedModel.incompatibility: the sentence head was not trained."""
    if config.sentence_prediction == "none":
      return "it was pretrained with --sentence_prediction=none, so its sentence head was not trained"
    return None

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    return {"probabilities": tf.nn.softmax(self.output(self.encoder.pooled_output(tokens, layout)))}

  @classmethod
  def metric_names(cls, task: Any) -> Sequence[str]:
    return (f"{task.sentence_metric}_accuracy",)

  @classmethod
  def training_outputs(cls, answers: NamedArrays, batch: NamedArrays) -> dict[str, np.ndarray]:
    """Counts the rows whose more probable class is right."""
    is_correct = answers["probabilities"].argmax(axis=1) == batch["next_sentence_labels"][:, 0]
    return {"num_correct": is_correct.astype(np.int32), "num_predicted": np.ones(len(is_correct), np.int32)}

  def add_text_answers(self, answers: AnswerTensors) -> AnswerTensors:
    return add_label(answers, self.labels)


class ServedEmbeddings(ServedTextModel):
  """Serves embeddings: the mean of the last layer, the pooler's output, and the vectors of sentence-transformers."""

  summary = "computes embeddings of texts"
  uses_pooler = False
  answers: ClassVar[Mapping[str, str]] = {
    "pooled": "the output of the pooler at [CLS], float32 [B, H]",
    "mean": "the mean of the last layer over all tokens, including [CLS] and [SEP], float32 [B, H]",
    "sentence_embedding": "the vector that sentence-transformers computes with this model, float32 [B, D]",
  }

  def __init__(self, checkpoint: ExportCheckpoint, form: SelectedForm):
    super().__init__(checkpoint, form)
    self.fields = text_fields(["any text"])
    self.sentence_vectors = read_sentence_vectors(checkpoint.file.directory, checkpoint.file.flag)

  def compute(self, tokens: TokenBatch, layout: TokenLayout) -> AnswerTensors:
    sequence_output = self.encoder.sequence_output(tokens, layout)  # [B, S, H], zeros at padding
    num_tokens = tf.reduce_sum(tf.cast(tokens.input_mask, tf.float32), axis=1, keepdims=True)
    answers = {"mean": tf.reduce_sum(sequence_output, axis=1) / num_tokens}
    if self.encoder.pooler is not None:
      answers["pooled"] = self.encoder.pool(sequence_output[:, 0])
    if self.sentence_vectors:
      answers["sentence_embedding"] = self.sentence_vectors.compute(sequence_output, tokens.input_mask)
    return answers

  def available_answers(self) -> Mapping[str, str]:
    """See ServedModel.available_answers: not every checkpoint has a pooler, or is one of sentence-transformers."""
    missing = {"pooled": self.encoder.pooler is None, "sentence_embedding": not self.sentence_vectors}
    return {name: text for name, text in self.answers.items() if not missing.get(name)}
