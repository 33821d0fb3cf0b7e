"""JSON that users write, and files whose damage is no error: a valid content of each, and the function that reads it.

Those of tasks, served models and data preparation are in json_data_files.py.
tests/integration/test_json_files.py reads all of them with damaged contents.
"""

from __future__ import annotations

from albert.config.model import load_model_config
from albert.config.recipes import read_recipe
from albert.data.manifest import DataContent, Manifest
from albert.io.files import read_json
from albert.runs.directory_lock import _parse_owner
from albert.tokenization.recorded_settings import find_tokenizer_config
from albert.tokenization.tokenizer import Tokenizer
from albert.weights.checkpoints import CheckpointManager, find_damage
from tests.integration.json_contents import (
  BPE_BYTE_IDS,
  BPE_SPECIAL_IDS,
  CHECKPOINT_FILE_ENTRY,
  CHECKPOINT_FILES,
  RUN_CONFIG,
  SHARDS_MANIFEST,
)
from tests.integration.json_data_files import JSON_DATA_FILES
from tests.integration.json_file import JsonFile
from tests.integration.json_readers import (
  read_labels,
  read_settings,
  read_stages_value,
  read_tf_config,
)
from tests.synthetic import TINY_MODEL

# Name for the tests -> the file. In the functions, d is the directory.
JSON_FILES = {
  "recipe": JsonFile(
    "r.json",
    {"task": "race", "model": {"hidden_size": 12}, "optimizer": {}, "train": {"seed": 1}, "data": {}, "stages": []},
    lambda d: read_recipe(str(d / "r.json"), "race"),
  ),
  "model config": JsonFile(
    "c.json", {"hidden_size": 12, "gap_size": 0, "hidden_act": "gelu"}, lambda d: load_model_config(str(d / "c.json"))
  ),
  "Hugging Face config": JsonFile(
    "config.json",
    {"model_type": "albert", "hidden_act": "gelu_new", "hidden_size": 64, "layer_norm_eps": 1e-12},
    lambda d: load_model_config(str(d / "config.json")),
  ),
  "config of a run, for a command": JsonFile(
    "config.json",
    RUN_CONFIG,
    read_settings,
    other_files={"training_loss.json": "{}"},
  ),
  "Hugging Face tokenizer config": JsonFile(
    "tokenizer_config.json",
    {"do_lower_case": True, "keep_accents": False, "added_tokens_decoder": {"4": {"content": "[MASK]"}}},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"spiece.model": ""},
  ),
  "Hugging Face special tokens": JsonFile(
    "special_tokens_map.json",
    {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}, "additional_special_tokens": ["[SEP]"]},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"spiece.model": ""},
  ),
  "Hugging Face added tokens": JsonFile(
    "added_tokens.json",
    {"[MASK]": 4},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"spiece.model": ""},
  ),
  "byte-level BPE pieces": JsonFile(
    "vocab.json",
    BPE_SPECIAL_IDS,
    lambda d: Tokenizer(d / "vocab.json"),
    other_files={"merges.txt": ""},
    wrap=lambda data: data.replace(b"{", b"{" + BPE_BYTE_IDS, 1),
  ),
  "byte-level BPE tokenizer": JsonFile(
    "tokenizer.json",
    {
      "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
      "normalizer": None,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
      "model": {"type": "BPE", "dropout": None, "vocab": BPE_SPECIAL_IDS | {"he": 261}, "merges": [["h", "e"]]},
    },
    lambda d: Tokenizer(d / "tokenizer.json"),
    wrap=lambda data: data.replace(b'"vocab": {', b'"vocab": {' + BPE_BYTE_IDS, 1),
  ),
  "best checkpoint": JsonFile(
    "best.json",
    {"step": 3, "metric": "f1", "value": 0.5},
    lambda d: CheckpointManager(str(d), keep=1, model_config=TINY_MODEL).best(),
    reads_nan=True,
  ),
  "manifest of a checkpoint": JsonFile(
    "step-1/manifest.json",
    {"step": 1, "files": dict.fromkeys(CHECKPOINT_FILES, CHECKPOINT_FILE_ENTRY)},
    lambda d: find_damage(str(d / "step-1")),
    result_if_damaged="manifest.json is damaged",
    other_files={f"step-1/{name}": "12345" for name in CHECKPOINT_FILES},
  ),
  "manifest of shards": JsonFile("manifest.json", SHARDS_MANIFEST, lambda d: Manifest.load(str(d))),
  "training data": JsonFile(
    "t.json",
    {"files": [{"name": "a", "sha256": "ab", "num_examples": 3}]},
    lambda d: read_json(str(d / "t.json"), DataContent),
  ),
  "lock": JsonFile(
    "lock",
    {"pid": 3, "host": "h", "token": "t"},
    lambda d: _parse_owner((d / "lock").read_bytes()).pid,
    result_if_damaged=0,
  ),
  "TF_CONFIG": JsonFile(
    "value",
    {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}},
    read_tf_config,
    name_in_error="TF_CONFIG",
    wrap=lambda data: data.replace(b"\0", b""),
    accepted_contents=("empty",),
  ),
  "labels": JsonFile(
    "value",
    "a",
    read_labels,
    name_in_error="--labels",
    wrap=lambda data: b'["x", ' + data + b"]",
    accepted_contents=("number", "text"),
  ),
  "stages": JsonFile(
    "value",
    {"until": 1, "input_file": "a"},
    read_stages_value,
    name_in_error="stages",
    wrap=lambda data: b"[" + data + b"]",
    accepted_contents=("empty", "blank"),
  ),
  **JSON_DATA_FILES,
}
