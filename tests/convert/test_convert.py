"""Converting weights between our format, the original's and Hugging Face's keeps all bits and reports every weight.

Weights that do not match are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from albert.config.model import load_model_config
from albert.convert import convert_checkpoint
from albert.convert.convert_checkpoint import convert
from albert.errors import RunError, UserError
from albert.io.protobuf import encode_bytes_field
from albert.tokenization.recorded_settings import find_tokenizer_config
from albert.tokenization.vocabulary import TokenizerConfig
from albert.weights.files import open_weights
from albert.weights.names import heads
from tests.convert.files_of_weights import CONFIG, huggingface_tensors, without_pooler, write_huggingface, write_tf1
from tests.file_limits import file_size_limit
from tests.golden.make_tiny_albert import random_batch, random_weights
from tests.models.build_models import build_encoder
from tests.run_outputs import assert_equal_bits
from tests.small_downloads import write_run
from tests.thorough import thorough_except

PRETRAINING_HEADS = ("masked_lm", "sentence")
# Combinations of heads that a model can have, and the class of transformers that has them.
HEAD_SETS = [
  ((), "AlbertModel"),
  (("masked_lm",), "AlbertForMaskedLM"),
  (PRETRAINING_HEADS, "AlbertForPreTraining"),
  (("classifier",), "AlbertForSequenceClassification"),
  (("squad",), "AlbertForQuestionAnswering"),
  (("squad_v2",), "AlbertModel"),
  ((*PRETRAINING_HEADS, "squad_v2"), "AlbertForPreTraining"),
]
# Changes of CONFIG that change the names or the shapes of weights.
CONFIG_CHANGES = [
  {},
  {"num_hidden_groups": 1, "inner_group_num": 1},
  {"num_hidden_groups": 4, "num_hidden_layers": 4},
  {"embedding_size": 20},
]


@pytest.fixture
def source(tmp_path: Path) -> str:
  """The prefix of a checkpoint of the original code."""
  return write_tf1(tmp_path / "tf1", CONFIG, random_weights(CONFIG, seed=3))


def read_bundle(prefix: str | Path) -> dict[str, np.ndarray]:
  """Reads all tensors of a checkpoint of TensorFlow."""
  reader = tf.train.load_checkpoint(str(prefix))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("changes", CONFIG_CHANGES)
def test_from_the_original_to_hugging_face_and_back_is_bit_identical(tmp_path, changes):
  config = dataclasses.replace(CONFIG, **changes)
  weights = random_weights(config, seed=3)
  source = write_tf1(tmp_path / "tf1", config, weights)
  convert(source, str(tmp_path / "ours"), "albert")
  convert(str(tmp_path / "ours"), str(tmp_path / "hf"), "huggingface")
  convert(str(tmp_path / "hf"), str(tmp_path / "ours_again"), "albert")
  convert(str(tmp_path / "ours_again" / "step-0"), str(tmp_path / "tf1_again"), "tf1")
  for prefix in ("ours/step-0/weights", "ours_again/step-0/weights", "tf1_again/model.ckpt"):
    assert_equal_bits(read_bundle(tmp_path / prefix), weights)
  data_file = "step-0/weights.data-00000-of-00001"
  assert (tmp_path / "ours" / data_file).read_bytes() == (tmp_path / "ours_again" / data_file).read_bytes()
  for path in ("ours_again/step-0/albert_config.json", "tf1_again/albert_config.json"):
    assert load_model_config(str(tmp_path / path)) == config


@pytest.mark.parametrize(("with_heads", "architecture"), HEAD_SETS)
def test_every_head_is_converted_to_hugging_face_and_back(tmp_path, with_heads, architecture):
  weights = random_weights(CONFIG, seed=3, with_heads=with_heads)
  convert(write_tf1(tmp_path / "tf1", CONFIG, weights), str(tmp_path / "hf"), "huggingface")
  assert_equal_bits(load_file(tmp_path / "hf" / "model.safetensors"), huggingface_tensors(weights))
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["architectures"] == [architecture]
  assert config["hidden_act"] == "gelu_new"
  assert len(config.get("id2label", {})) == (3 if with_heads == ("classifier",) else 0)
  convert(str(tmp_path / "hf"), str(tmp_path / "tf1_again"), "tf1")
  assert_equal_bits(read_bundle(tmp_path / "tf1_again" / "model.ckpt"), weights)


LABELS = {"labels": '["so, so", "good"]', "max_seq_length": 9}


@pytest.mark.parametrize(
  ("task", "settings", "architecture", "names", "problem_type"),
  [
    ("classifier", LABELS, "SequenceClassification", ["so, so", "good"], "single_label_classification"),
    ("classifier", {**LABELS, "multi_label": True}, "SequenceClassification", ["so, so", "good"],
     "multi_label_classification"),
    ("classifier", {"labels": "", "regression": True}, "SequenceClassification", ["LABEL_0"], "regression"),
    ("classifier", {}, "SequenceClassification", ["LABEL_0", "LABEL_1"], None),  # not recorded
    ("race", {}, "MultipleChoice", ["LABEL_0"], None),
    ("tagging", {"labels": "PER", "scheme": "BIO"}, "TokenClassification", ["O", "B-PER", "I-PER"], None),
  ],
)  # fmt: skip
def test_config_json_says_what_the_outputs_of_a_run_mean(
  tmp_path, spm_model, task, settings, architecture, names, problem_type
):
  weights = random_weights(CONFIG, seed=3, with_heads=("classifier",), num_classes=len(names))
  run = write_run(tmp_path / "run", CONFIG, weights, spm_model)
  Path(run, "config.json").write_text(json.dumps({"task": task, "data": settings}))
  convert(run, str(tmp_path / "hf"), "huggingface")
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["architectures"] == [f"AlbertFor{architecture}"]
  assert config["id2label"] == {str(index): name for index, name in enumerate(names)}
  assert config["label2id"] == {name: index for index, name in enumerate(names)}
  assert config.get("problem_type") == problem_type
  tokenizer_config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
  assert tokenizer_config["model_max_length"] == settings.get("max_seq_length", CONFIG.max_position_embeddings)
  convert(run, str(tmp_path / "longer"), "huggingface", max_position_embeddings=20)
  assert json.loads((tmp_path / "longer" / "tokenizer_config.json").read_text())["model_max_length"] == 20


@pytest.mark.parametrize("target", thorough_except(["albert"], ["albert", "tf1", "huggingface"]))
@pytest.mark.parametrize(
  ("keys", "class_name", "names"),
  [
    ({"id2label": {"1": "so, so", "0": "good"}, "problem_type": "multi_label_classification"},
     "SequenceClassification", ["good", "so, so"]),
    ({"num_labels": 1}, "SequenceClassification", ["LABEL_0"]),
    ({}, "SequenceClassification", ["LABEL_0", "LABEL_1"]),  # transformers writes no labels if there are two like these
    ({"id2label": {"0": "I-PER", "1": "O", "2": "B-PER"}}, "TokenClassification", ["I-PER", "O", "B-PER"]),
    ({}, "MultipleChoice", [None]),
  ],
)  # fmt: skip
def test_the_class_and_the_labels_of_other_peoples_models_are_kept(tmp_path, target, keys, class_name, names):
  weights = random_weights(CONFIG, seed=3, with_heads=("classifier",), num_classes=len(names))
  expected: dict[str, object] = {"architectures": [f"AlbertFor{class_name}"]}
  source = write_huggingface(tmp_path / "source", CONFIG, huggingface_tensors(weights), **expected, **keys)
  convert(source, str(tmp_path / "there"), target)
  convert(str(tmp_path / "there"), str(tmp_path / "back"), "huggingface")
  if None not in names:
    expected |= {"id2label": {str(i): name for i, name in enumerate(names)}, "problem_type": keys.get("problem_type")}
  config = json.loads((tmp_path / "back" / "config.json").read_text())
  assert {key: config.get(key) for key in expected} == expected


def test_a_classifier_with_one_output_needs_the_flag_architecture(tmp_path):
  weights = random_weights(CONFIG, seed=3, with_heads=("classifier",), num_classes=1)
  source = write_tf1(tmp_path / "tf1", CONFIG, weights)
  with pytest.raises(UserError, match="--architecture whether it is AlbertForMultipleChoice"):
    convert(source, str(tmp_path / "hf"), "huggingface")
  assert not (tmp_path / "hf").exists()
  convert(source, str(tmp_path / "hf"), "huggingface", architecture="AlbertForMultipleChoice")
  assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == ["AlbertForMultipleChoice"]


@pytest.mark.parametrize(
  ("target", "sharing"),
  thorough_except([("huggingface", "none")], itertools.product(["tf1", "huggingface"], ["attention", "ffn", "none"])),
)
def test_partly_shared_weights_are_copied_to_every_layer(tmp_path, sharing, target):
  config = dataclasses.replace(CONFIG, sharing=sharing, inner_group_num=1)
  weights = random_weights(config, seed=3, with_heads=())
  source = write_tf1(tmp_path / "ours", config, weights)
  convert(source, str(tmp_path / "out"), target)
  file = open_weights(str(tmp_path / "out" / "model.ckpt" if target == "tf1" else tmp_path / "out"))
  converted_config = file.config()
  assert converted_config is not None
  assert (converted_config.sharing, converted_config.num_hidden_groups) == ("all", 4)
  inputs = {name: tf.constant(array) for name, array in random_batch(config, 5).items()}
  expected = build_encoder(config, weights)(inputs)
  output = build_encoder(converted_config, {name: file.read(name) for name in file.entries})(inputs)
  np.testing.assert_array_equal(output.sequence_output, expected.sequence_output)
  np.testing.assert_array_equal(output.pooled_output, expected.pooled_output)


def test_groups_that_transformers_would_change_are_copied_to_every_layer(tmp_path):
  config = dataclasses.replace(CONFIG, num_hidden_layers=18, num_hidden_groups=14, inner_group_num=1)
  weights = random_weights(config, seed=3, with_heads=())
  convert(write_tf1(tmp_path / "tf1", config, weights), str(tmp_path / "hf"), "huggingface")
  assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_hidden_groups"] == 18
  tensors = load_file(tmp_path / "hf" / "model.safetensors")
  for layer in range(18):
    bias = f"bert/encoder/transformer/group_{layer * 14 // 18}/inner_group_0/ffn_1/intermediate/dense/bias"
    bias_of_layer = tensors[f"albert.encoder.albert_layer_groups.{layer}.albert_layers.0.ffn.bias"]
    np.testing.assert_array_equal(bias_of_layer, weights[bias])


def test_the_report_lists_every_weight_with_its_hash(tmp_path):
  weights = random_weights(CONFIG, seed=3)
  report = convert(write_tf1(tmp_path / "tf1", CONFIG, weights, "module/"), str(tmp_path / "hf"), "huggingface")
  assert (tmp_path / "hf" / "conversion.tsv").read_text() == report
  header, *rows = [line.split("\t") for line in report.splitlines()]
  assert header == ["source", "target", "shape", "sha256"]
  tensors = load_file(tmp_path / "hf" / "model.safetensors")
  assert {row[1] for row in rows} == set(tensors)
  assert {row[0] for row in rows} == {f"module/{name}" for name in weights}
  for _, target, shape, sha256 in rows:
    assert shape == "x".join(map(str, tensors[target].shape))
    assert sha256 == hashlib.sha256(tensors[target].tobytes()).hexdigest()


def test_a_flipped_bit_in_converted_weights_is_named(tmp_path):
  """A safetensors file has no checksums, but conversion.tsv beside it has them."""
  convert(write_tf1(tmp_path / "tf1", CONFIG, random_weights(CONFIG, seed=4)), str(tmp_path / "hf"), "huggingface")
  path = tmp_path / "hf" / "model.safetensors"
  content = bytearray(path.read_bytes())
  content[-100] ^= 1  # in the last tensor
  path.write_bytes(bytes(content))
  with pytest.raises(UserError, match=r"model.safetensors: \S+ is not what conversion.tsv beside it says: .*damaged"):
    convert(str(tmp_path / "hf"), str(tmp_path / "back"), "albert")
  (tmp_path / "hf" / "conversion.tsv").write_text("nothing\nof\tthis")
  with pytest.raises(UserError, match=r"conversion.tsv: is not the list that albert.convert wrote: restore it"):
    convert(str(tmp_path / "hf"), str(tmp_path / "back"), "albert")
  (tmp_path / "hf" / "conversion.tsv").unlink()
  convert(str(tmp_path / "hf"), str(tmp_path / "back"), "albert")


@pytest.mark.parametrize("target", ["albert", "tf1", "huggingface"])
def test_every_format_keeps_the_settings_of_the_vocabulary(tmp_path, target, capsys, spm_model):
  run = write_run(tmp_path / "run", CONFIG, random_weights(CONFIG, seed=3), spm_model)
  convert(run, str(tmp_path / "converted"), target)
  config = find_tokenizer_config(tmp_path / "converted")
  assert config == TokenizerConfig(str(tmp_path / "converted" / "spiece.model"), False, convert_quotes=True)
  assert ("its scripts need --do_lower_case=false" in capsys.readouterr().err) == (target == "tf1")


def test_the_vocabulary_is_copied(tmp_path, source, spm_model):
  vocabulary = Path(spm_model).read_bytes()
  googles_vocabulary = vocabulary + encode_bytes_field(100, b"an unknown field")
  (tmp_path / "mine.model").write_bytes(vocabulary)
  convert(source, str(tmp_path / "ours"), "albert", spm_model_file=str(tmp_path / "mine.model"))
  convert(str(tmp_path / "ours"), str(tmp_path / "hf"), "huggingface")
  convert(str(tmp_path / "hf"), str(tmp_path / "tf1_again"), "tf1")
  for name in ("ours", "hf", "tf1_again"):
    assert (tmp_path / name / "spiece.model").read_bytes() == vocabulary
  (tmp_path / "tf1" / "30k-clean.model").write_bytes(googles_vocabulary)
  convert(source, str(tmp_path / "from_google"), "huggingface")
  assert (tmp_path / "from_google" / "spiece.model").read_bytes() == googles_vocabulary
  with pytest.raises(UserError, match=r"vocabulary is .*30k-clean\.model .*=.*mine\.model is a different one"):
    convert(source, str(tmp_path / "x"), "albert", spm_model_file=str(tmp_path / "mine.model"))
  with pytest.raises(UserError, match="--spm_model_file=nowhere: no such file"):
    convert(source, str(tmp_path / "x"), "albert", spm_model_file="nowhere")


@pytest.mark.parametrize("activation", ["gelu", "gelu_erf", "relu", "silu"])
def test_the_activation_keeps_its_meaning(tmp_path, activation):
  """Our "gelu" is called "gelu_new" in transformers, and our "gelu_erf" is called "gelu"."""
  config = dataclasses.replace(CONFIG, hidden_act=activation)
  convert(write_tf1(tmp_path / "ours", config, random_weights(config, seed=3)), str(tmp_path / "hf"), "huggingface")
  huggingface_name = json.loads((tmp_path / "hf" / "config.json").read_text())["hidden_act"]
  assert huggingface_name == {"gelu": "gelu_new", "gelu_erf": "gelu"}.get(activation, activation)
  assert load_model_config(str(tmp_path / "hf" / "config.json")).hidden_act == activation
  convert(str(tmp_path / "hf"), str(tmp_path / "back"), "albert")
  assert load_model_config(str(tmp_path / "back" / "step-0" / "albert_config.json")).hidden_act == activation


@pytest.mark.parametrize(
  ("head", "architecture"),
  [("masked_lm", "ForMaskedLM"), ("squad", "ForQuestionAnswering"), ("classifier", "ForTokenClassification")],
)
def test_a_model_without_pooler_is_converted_from_hugging_face_and_back(tmp_path, head, architecture):
  weights = without_pooler(random_weights(CONFIG, seed=3, with_heads=(head,)))
  source = write_huggingface(tmp_path / "hf", CONFIG, huggingface_tensors(weights))
  for target, prefix in (("albert", "step-0/weights"), ("tf1", "model.ckpt")):
    convert(source, str(tmp_path / target), target)
    assert_equal_bits(read_bundle(tmp_path / target / prefix), weights)
  convert(str(tmp_path / "albert"), str(tmp_path / "back"), "huggingface")
  assert_equal_bits(load_file(tmp_path / "back" / "model.safetensors"), huggingface_tensors(weights))
  assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == [f"Albert{architecture}"]
  with pytest.raises(UserError, match="--architecture=AlbertForSequenceClassification: the weights have no pooler"):
    convert(source, str(tmp_path / "pooled"), "huggingface", architecture="AlbertForSequenceClassification")
  # A run that does not use the pooler saves a pooler of zeros, which the conversion leaves out.
  zeros = {name: np.zeros_like(weight) for name, weight in random_weights(CONFIG, seed=3).items() if "pooler" in name}
  convert(write_tf1(tmp_path / "run", CONFIG, weights | zeros), str(tmp_path / "hf_of_run"), "huggingface")
  assert_equal_bits(load_file(tmp_path / "hf_of_run" / "model.safetensors"), huggingface_tensors(weights))


def change_weights(changes: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
  """Returns random weights with some of them replaced, or removed if the new value is None."""
  weights = {**random_weights(CONFIG, seed=3), **changes}
  return {name: weight for name, weight in weights.items() if weight is not None}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"bert/new/kernel": np.ones([2, 3], np.float32)}, r"has unmatched 1 weight: bert/new/kernel; .*albert_config"),
    ({"bert/pooler/dense/bias": None}, "lacks 1 weight: bert/pooler/dense/bias"),
    ({"cls/predictions/output_bias": None}, "lacks 1 weight: cls/predictions/output_bias"),
    (
      {"bert/embeddings/LayerNorm/beta": np.ones([7], np.float32)},
      r"another shape for 1 weight: bert/embeddings/LayerNorm/beta \[7\] instead of \[6\]",
    ),
    (
      {"output_weights": np.ones([3, 19], np.float32), "output_bias": np.ones([3], np.float32)},
      r"instead of \[None, 20\]",
    ),
  ],
)
def test_weights_that_do_not_match_are_an_error_and_nothing_is_written(tmp_path, changes, message):
  source = write_tf1(tmp_path / "tf1", CONFIG, change_weights(changes))
  with pytest.raises(UserError, match=message):
    convert(source, str(tmp_path / "out"), "albert")
  assert [path.name for path in tmp_path.iterdir()] == ["tf1"]


def test_weights_without_a_config_need_the_flag_albert_config_file(tmp_path, source):
  config = (tmp_path / "tf1" / "albert_config.json").rename(tmp_path / "config_elsewhere.json")
  with pytest.raises(UserError, match=r"no albert_config\.json or config\.json beside it.*--albert_config_file"):
    convert(source, str(tmp_path / "out"), "albert")
  convert(source, str(tmp_path / "out"), "albert", albert_config_file=str(config))
  assert (tmp_path / "out" / "step-0" / "manifest.json").exists()


def test_a_directory_that_is_not_empty_is_refused(tmp_path, source):
  with pytest.raises(UserError, match="exists and is not empty"):
    convert(source, str(tmp_path / "tf1"), "albert")
  (tmp_path / "empty").mkdir()
  convert(source, str(tmp_path / "empty") + "/", "albert")
  assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "tf1"]


@pytest.mark.parametrize("target", ["albert", "huggingface", "tf1"])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, source, target):
  message = rf"^{tmp_path}/out.*: cannot (write|save) it \(File too large\): .*same command again"
  with file_size_limit(5000), pytest.raises(RunError, match=message):
    convert(source, str(tmp_path / "out"), target)
  assert [path.name for path in tmp_path.iterdir()] == ["tf1"]
  convert(source, str(tmp_path / "out"), target)


def test_every_file_is_synced_before_the_directory_is_renamed(tmp_path, source, monkeypatch):
  synced_inodes: set[int] = set()
  fsync = os.fsync

  def sync_and_record(descriptor: int) -> None:
    if not (tmp_path / "out").exists():
      synced_inodes.add(os.fstat(descriptor).st_ino)
    fsync(descriptor)

  monkeypatch.setattr(os, "fsync", sync_and_record)
  convert(source, str(tmp_path / "out"), "tf1")
  inodes = {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()}
  assert {"model.ckpt.index", "albert_config.json"} < set(inodes)
  assert set(inodes.values()) <= synced_inodes


def test_an_output_dir_that_another_process_fills_meanwhile_is_refused(tmp_path, source, monkeypatch):
  write = convert_checkpoint._write

  def write_after_other_process(model, directory, target, architecture):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").touch()
    return write(model, directory, target, architecture)

  monkeypatch.setattr(convert_checkpoint, "_write", write_after_other_process)
  with pytest.raises(RunError, match=r"out: cannot write it \(Directory not empty\)"):
    convert(source, str(tmp_path / "out"), "huggingface")
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]


@pytest.mark.parametrize("fields", [{"hidden_act": "gelu_erf"}, {"layer_norm_eps": 1e-5}])
def test_what_the_original_does_not_have_cannot_be_written_for_it(tmp_path, fields):
  config = dataclasses.replace(CONFIG, **fields)
  source = write_tf1(tmp_path / "tf1", config, random_weights(config, seed=3))
  with pytest.raises(UserError, match=f"{next(iter(fields))} .*: the original has only "):
    convert(source, str(tmp_path / "out"), "tf1")


@pytest.mark.thorough
def test_the_command_converts_and_prints_one_line(tmp_path, source, commands):
  flags = [f"--init_checkpoint={source}", f"--output_dir={tmp_path / 'hf'}", "--format=huggingface"]
  result = commands.run(["-m", "albert.convert", *flags])
  assert result.code == 0, result.stderr
  num_weights = len((tmp_path / "hf" / "conversion.tsv").read_text().splitlines()) - 1
  assert result.stdout == f"{num_weights} weights in {tmp_path}/hf; {tmp_path}/hf/conversion.tsv lists them\n"
  assert result.stderr == ""


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--output_dir=x", "--format=tf1"], "--init_checkpoint is missing: weights to convert"),
    (["--init_checkpoint=nowhere", "--output_dir=x", "--format=tf1"], "--init_checkpoint=nowhere: no checkpoint there"),
    (["--init_checkpoint=a", "--output_dir=x", "--format=onnx"], "onnx"),
    (["--init_checkpoint=a", "--output_dir=x", "--format=tf1", "--architecture=AlbertModel"], "is for --format=hugg"),
  ],
)
def test_the_command_refuses_bad_flags_with_one_line_and_exit_code_2(flags, message):
  command = [sys.executable, "-m", "albert.convert", *flags]
  result = subprocess.run(command, capture_output=True, text=True, check=False)
  assert (result.returncode, result.stdout) == (2, "")
  assert message in result.stderr
  assert len(result.stderr.splitlines()) == 1


def test_head_sets_have_every_head_of_the_table_of_names():
  assert {name for heads_of_model, _ in HEAD_SETS for name in heads_of_model} == set(heads(CONFIG))
