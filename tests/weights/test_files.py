"""Reading weights of every format, as --init_checkpoint does. The errors for other files name the remedy."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from albert.convert.model import read_model
from albert.errors import UserError
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.weights.checkpoints import CheckpointManager
from albert.weights.files import open_weights
from albert.weights.initial_weights import open_pretrained, warm_start
from tests.convert.files_of_weights import (
  CONFIG,
  huggingface_tensors,
  original_tensors,
  without_pooler,
  write_huggingface,
  write_tf1,
  write_tf1_with_saver,
)
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import build_pretraining_model
from tests.run_outputs import assert_equal_bits

WEIGHTS = random_weights(CONFIG, 3)


def write_all_formats(directory: Path) -> dict[str, str]:
  """Writes the same weights in all formats. Returns name of a format -> path for --init_checkpoint."""
  without_prefix = huggingface_tensors(WEIGHTS, with_prefix=False)
  paths = {
    "original": write_tf1_with_saver(directory / "tf1", original_tensors(WEIGHTS)),
    "hub": write_tf1(directory / "hub", CONFIG, WEIGHTS, "module/"),
    "huggingface": write_huggingface(directory / "hf", CONFIG, huggingface_tensors(WEIGHTS)),
    "huggingface_without_prefix": write_huggingface(directory / "hf_without_prefix", CONFIG, without_prefix),
    "safetensors": str(directory / "hf" / "model.safetensors"),
    "safetensors_original": str(directory / "original.safetensors"),
    "run": str(directory / "run"),
    "step": str(directory / "run" / "checkpoints" / "step-7"),
    "several_runs": str(directory / "several"),
  }
  save_file(WEIGHTS, paths["safetensors_original"])
  worse = {name: np.zeros_like(value) for name, value in WEIGHTS.items()}
  for run, weights in (("run", WEIGHTS), ("several/run-4", worse), ("several/run-5", WEIGHTS)):
    CheckpointManager(str(directory / run / "checkpoints"), keep=1, model_config=CONFIG).save(7, weights)
  (directory / "several" / "runs.json").write_text(json.dumps({"seeds": [4, 5], "best_run": "run-5", "metrics": {}}))
  return paths


# Name of a kind of checkpoint -> forms of the names of its slots.
SLOTS = {
  "LAMB": ("{}/lamb_m", "{}/lamb_v"),
  "Adam": ("{}/Adam", "{}/Adam_1"),
  "Keras": ("training/Adam/{}/m", "training/Adam/{}/v"),
  "Keras 2.11": ("Adam/m/{}", "Adam/v/{}"),
  "another": ("{}/SomeOptimizer/slot",),
}


@pytest.mark.parametrize("kind", SLOTS)
def test_slots_of_any_optimizer_and_its_state_are_no_weights(tmp_path, kind):
  slots = {form.format(name): value for form in SLOTS[kind] for name, value in WEIGHTS.items()}
  state = {name: np.array(7, np.float32) for name in ("beta1_power", "Adam/learning_rate", "global_step")}
  path = write_tf1_with_saver(tmp_path, WEIGHTS | slots | state)
  assert open_weights(path).entries.keys() == WEIGHTS.keys()


def test_layer_norms_of_keras_and_their_slots_are_recognized(tmp_path):
  numbers = {"LayerNorm": "layer_normalization", "LayerNorm_1": "layer_normalization_10"}
  renamed = {re.sub(r"LayerNorm(_1)?", lambda m: numbers[m[0]], name): value for name, value in WEIGHTS.items()}
  path = write_tf1_with_saver(tmp_path, renamed | {f"{name}/lamb_m": value for name, value in renamed.items()})
  file = open_weights(path)
  assert_equal_bits({name: file.read(name) for name in file.entries}, WEIGHTS)


def test_every_format_gives_the_same_bits(tmp_path):
  for format_name, path in write_all_formats(tmp_path).items():
    model = build_pretraining_model(CONFIG)
    assert warm_start(path, model.named_weights()) == []
    for name, variable in model.named_weights().items():
      assert variable.numpy().tobytes() == WEIGHTS[name].tobytes(), (format_name, name)


def test_a_damaged_checkpoint_of_a_run_is_named(tmp_path, capsys):
  manager = CheckpointManager(str(tmp_path / "checkpoints"), keep=2, model_config=CONFIG)
  for step in (3, 7):
    manager.save(step, WEIGHTS)
  (tmp_path / "checkpoints" / "step-7" / "albert_config.json").write_text("{}")
  assert open_weights(str(tmp_path)).directory.endswith("step-3")
  message = "step-7: albert_config.json has 2 bytes instead of"
  assert message in capsys.readouterr().err
  for path in ("checkpoints/step-7", "checkpoints/step-7/weights", "checkpoints/step-7/weights.index"):
    message = r"step-7.*: albert_config.json has 2 bytes instead of .*give another checkpoint"
    with pytest.raises(UserError, match=message):
      open_weights(str(tmp_path / path))


def write_masked_lm(directory: Path) -> str:
  """Writes the weights of transformers' AlbertForMaskedLM, which has no pooler and no sentence head."""
  weights = {name: weight for name, weight in WEIGHTS.items() if "seq_relationship" not in name}
  return write_huggingface(directory, CONFIG, huggingface_tensors(without_pooler(weights)))


def test_weights_that_the_task_does_not_use_may_be_missing_and_become_zeros(tmp_path):
  unused = PretrainingTask(CONFIG, PretrainingConfig(sentence_prediction="none")).unused_weights
  assert not PretrainingTask(CONFIG, PretrainingConfig()).unused_weights
  variables = build_pretraining_model(CONFIG).named_weights()
  assert warm_start(write_masked_lm(tmp_path / "masked_lm"), variables, unused=unused) == []
  for name, variable in variables.items():
    expected = np.zeros_like(WEIGHTS[name]) if name.startswith(("bert/pooler/", "cls/seq")) else WEIGHTS[name]
    assert variable.numpy().tobytes() == expected.tobytes(), name
  # A later run does not use the pooler of zeros as if it were trained.
  weights = {name: variable.numpy() for name, variable in variables.items()}
  assert not open_weights(write_tf1(tmp_path / "run", CONFIG, weights)).has_pooler


def test_a_task_that_needs_a_pooler_refuses_weights_without_a_trained_one(tmp_path):
  masked_lm = write_masked_lm(tmp_path / "masked_lm")
  pooler_of_zeros = {name: np.zeros_like(weight) for name, weight in WEIGHTS.items() if name.startswith("bert/pooler/")}
  prefix = write_tf1(tmp_path / "run", CONFIG, WEIGHTS | pooler_of_zeros)
  variables = build_pretraining_model(CONFIG).named_weights()
  remedy = "has no pooler .*AlbertForMaskedLM.*: give weights with one, such as AlbertModel's"
  with pytest.raises(UserError, match=f"{remedy}.*or train without the sentence loss, with --sentence_prediction=none"):
    warm_start(masked_lm, variables)
  # A classifier, for example, has no sentence loss, so the error does not mention it.
  without_sentence_head = {name: variable for name, variable in variables.items() if "seq_relationship" not in name}
  for path in (masked_lm, prefix):
    with pytest.raises(UserError, match=remedy) as caught:
      warm_start(path, without_sentence_head, ignored=("cls/",))
    assert "sentence_prediction" not in str(caught.value)


def test_unused_weights_must_be_complete_or_missing(tmp_path):
  tensors = {name: tensor for name, tensor in huggingface_tensors(WEIGHTS).items() if name != "albert.pooler.bias"}
  path = write_huggingface(tmp_path / "damaged", CONFIG, tensors)
  with pytest.raises(UserError, match="lacks 1 weight: bert/pooler/dense/bias"):
    warm_start(path, build_pretraining_model(CONFIG).named_weights(), unused=("bert/pooler/",))


def test_copies_of_tied_weights_must_be_equal(tmp_path):
  tensors = huggingface_tensors(WEIGHTS)
  copies = {
    "predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"].copy(),
    "predictions.decoder.bias": tensors["predictions.bias"].copy(),
    "albert.embeddings.position_ids": np.arange(14)[None],
  }
  file = open_weights(write_huggingface(tmp_path / "tied", CONFIG, tensors | copies))
  assert set(file.entries) == set(WEIGHTS)
  # The copy of a bias is enough.
  without_bias = {name: tensor for name, tensor in (tensors | copies).items() if name != "predictions.bias"}
  file = open_weights(write_huggingface(tmp_path / "only_copy", CONFIG, without_bias))
  np.testing.assert_array_equal(file.read("cls/predictions/output_bias"), WEIGHTS["cls/predictions/output_bias"])
  copies["predictions.decoder.weight"][0, 0] += 1
  with pytest.raises(UserError, match=r"predictions\.decoder\.weight differs from .*word_embeddings.* ALBERT ties it"):
    open_weights(write_huggingface(tmp_path / "untied", CONFIG, tensors | copies))


def test_a_projection_between_equal_sizes_must_be_the_identity(tmp_path):
  config = dataclasses.replace(CONFIG, embedding_size=20)
  weights = random_weights(config, 3)
  name = "albert.encoder.embedding_hidden_mapping_in"
  identity = {f"{name}.weight": np.eye(20, dtype=np.float32), f"{name}.bias": np.zeros(20, np.float32)}
  tensors = huggingface_tensors(weights) | identity
  assert set(open_weights(write_huggingface(tmp_path / "identity", config, tensors)).entries) == set(weights)
  for changed_name in identity:
    changed = {**tensors, changed_name: tensors[changed_name] + np.float32(0.5)}
    with pytest.raises(UserError, match=r"is not the identity; ALBERT has no projection where E = H"):
      open_weights(write_huggingface(tmp_path / changed_name, config, changed))


def test_a_classifier_from_elsewhere_gets_the_order_of_the_labels_of_a_task(tmp_path, capsys):
  weights = random_weights(CONFIG, 3, with_heads=("classifier",), num_classes=3)
  keys = {"architectures": ["AlbertForTokenClassification"], "id2label": {"2": "O", "0": "B-X", "1": "I-X"}}
  file = open_weights(write_huggingface(tmp_path, CONFIG, huggingface_tensors(weights), **keys))
  for labels, order in [(("O", "B-X", "I-X"), [2, 0, 1]), (("O", "B-Y", "I-Y"), [0, 1, 2]), ((), [0, 1, 2])]:
    reordered = file.with_labels(labels)
    for name in weights:
      expected = weights[name][order] if name.startswith("output_") else weights[name]
      np.testing.assert_array_equal(reordered.read(name), expected)
    warning = "the labels B-X, I-X, O of its head become O, B-Y, I-Y: if that is wrong, train with --fresh_head"
    assert (warning in capsys.readouterr().err) == ("B-Y" in labels)
  (tmp_path / "config.json").write_text(json.dumps(keys | {"id2label": {"1": "B", "2": "O"}}))
  with pytest.raises(UserError, match=r"config\.json: id2label is not an object of labels by their ids, from 0"):
    file.with_labels(("B", "O"))


def test_a_missing_file_is_refused(tmp_path):
  with pytest.raises(UserError, match="no such file"):
    open_weights(str(tmp_path / "x.safetensors"))


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("model.safetensors.index.json", r"in several files; save them as one.*max_shard_size=\"100GB\""),
    ("pytorch_model.bin.index.json", r"in several files; save them as one.*max_shard_size=\"100GB\""),
    ("tf_model.h5", r": tf_model\.h5 is a file of Keras or Flax: convert it in transformers 4.*from_tf=True.*save_pre"),
    ("flax_model.msgpack", r": flax_model\.msgpack is a file of Keras or Flax: .*from_flax=True"),
  ],
)
def test_files_that_are_not_read_are_refused_with_the_remedy(tmp_path, name, message):
  (tmp_path / name).write_text("{}")
  with pytest.raises(UserError, match=message):
    open_weights(str(tmp_path))


def test_a_truncated_checkpoint_of_the_original_is_refused(tmp_path):
  prefix = write_tf1(tmp_path / "tf1", CONFIG, WEIGHTS)
  data_file = Path(prefix + ".data-00000-of-00001")
  data_file.write_bytes(data_file.read_bytes()[:1000])
  with pytest.raises(UserError, match=r"cannot read .* the data file is damaged or missing"):
    warm_start(prefix, build_pretraining_model(CONFIG).named_weights())
  Path(prefix + ".index").write_bytes(b"x" * 50)
  with pytest.raises(UserError, match=r"\.index: is not a TensorFlow checkpoint, or is damaged"):
    open_weights(prefix)


def test_weights_whose_layers_transformers_groups_in_another_way_are_refused(tmp_path):
  config = dataclasses.replace(CONFIG, num_hidden_layers=18, num_hidden_groups=14, inner_group_num=1)
  source = write_huggingface(tmp_path / "hf", config, huggingface_tensors(random_weights(config, 3)))
  message = r"=.*hf: transformers assigns 18 layers to 14 groups in another way than the original"
  for read in (lambda: warm_start(source, {}), lambda: open_pretrained(source), lambda: read_model(source)):
    with pytest.raises(UserError, match=message):
      read()


@pytest.mark.parametrize("shape", [(), (20,), (1, 20, 20)])
def test_a_projection_of_another_rank_is_refused(tmp_path, shape):
  tensors = huggingface_tensors(WEIGHTS)
  tensors["albert.encoder.embedding_hidden_mapping_in.weight"] = np.zeros(shape, np.float32)
  path = write_huggingface(tmp_path / "weights", CONFIG, tensors)
  with pytest.raises(UserError, match="another shape for 1 weight: bert/encoder/embedding_hidden_mapping_in/kernel"):
    read_model(path)


def test_weights_of_another_architecture_are_refused(tmp_path):
  save_file({"transformer.wte.weight": np.ones([3, 4], np.float32)}, str(tmp_path / "gpt.safetensors"))
  with pytest.raises(UserError, match=r"none of its 1 arrays has a name of ALBERT's .*'transformer\.wte\.weight'"):
    open_weights(str(tmp_path / "gpt.safetensors"))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"num_hidden_layers": 8},
      "config.json has num_hidden_layers 4, this model has 8; give that file as --albert_config_file",
    ),
    pytest.param(
      {"num_attention_heads": 4}, "config.json has num_attention_heads 5, this model has 4", marks=pytest.mark.thorough
    ),
    pytest.param(
      {"hidden_act": "relu"}, "config.json has hidden_act 'gelu', this model has 'relu'", marks=pytest.mark.thorough
    ),
  ],
)
def test_a_config_beside_the_weights_must_agree_in_fields_that_do_not_affect_shapes(tmp_path, changes, message):
  source = write_huggingface(tmp_path / "hf", CONFIG, huggingface_tensors(WEIGHTS))
  config = dataclasses.replace(CONFIG, **changes)
  model = build_pretraining_model(config)
  with pytest.raises(UserError, match=message):
    warm_start(source, model.named_weights(), config=config)
  if "num_hidden_layers" in changes:
    assert warm_start(source, model.named_weights(), config=config, from_shallower=True) == []
  assert warm_start(source, build_pretraining_model(CONFIG).named_weights(), config=CONFIG) == []
