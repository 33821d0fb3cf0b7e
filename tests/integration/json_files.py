"""The JSON files and other JSON that the code reads: a valid content of each, and the function that reads it.

Those of tasks, served models and data preparation are in json_data_files.py.
tests/integration/test_json_files.py reads all of them with damaged contents.
"""

from __future__ import annotations

from albert import ensemble
from albert.config.model import load_model_config
from albert.config.recipes import read_recipe
from albert.data.manifest import Manifest
from albert.experiments import catalog, layers, runner
from albert.io.files import read_json
from albert.report import records
from albert.runs import logs, output_files
from albert.runs.directory_lock import _parse_owner
from albert.settings import tpu_memory
from albert.tasks.glue.results import read_thresholds
from albert.tokenization.recorded_settings import find_tokenizer_config
from albert.tokenization.tokenizer import Tokenizer
from albert.training.run import find_failure
from albert.weights.checkpoints import CheckpointManager, find_damage
from albert.weights.files import WeightLocation
from tests.integration.json_contents import (
  BPE_BYTE_IDS,
  BPE_SPECIAL_IDS,
  CHECKPOINT_FILE_ENTRY,
  CHECKPOINT_FILES,
  EXPERIMENT_FILE,
  RESULT_ROW,
  RUN_CONFIG,
  SEVERAL_RUNS,
  SHARDS_MANIFEST,
)
from tests.integration.json_data_files import JSON_DATA_FILES
from tests.integration.json_file import JsonFile
from tests.integration.json_readers import (
  json_line,
  read_labels,
  read_settings,
  read_settings_of_several_runs,
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
  "memory of compiled steps": JsonFile(
    "tpu_memory.json",
    {
      "chips": {"v3": {"limit": 16, "units_per_core": 1}},
      "steps": [
        {
          "step": "pretraining",
          "model": "albert_base",
          "length": 512,
          "chip": "v3",
          "recompute_grad": False,
          "gradient_accumulation_steps": 1,
          "compiled": "2026-11-23",
          "fits": [{"batch": 1, "bytes": 10}],
          "too_large": [],
        }
      ],
    },
    lambda d: tpu_memory.read_table(str(d / "tpu_memory.json")),
  ),
  "config of a run, for a command": JsonFile(
    "config.json",
    RUN_CONFIG,
    read_settings,
    other_files={"training_loss.json": "{}"},
  ),
  "config of a run, for an ensemble": JsonFile("config.json", RUN_CONFIG, lambda d: ensemble._read_config(str(d))),
  "config of a run, for an export": JsonFile(
    "run/config.json",
    RUN_CONFIG,
    lambda d: WeightLocation("run", str(d / "run" / "checkpoints" / "step-1")).run,
  ),
  "config of a run, for its vocabulary": JsonFile(
    "config.json", RUN_CONFIG, lambda d: find_tokenizer_config(str(d)), other_files={"spiece.model": ""}
  ),
  "settings of an exported model, for its vocabulary": JsonFile(
    "assets.extra/servable.json",
    {"name": "cola", "do_lower_case": False, "convert_quotes": True},
    lambda d: find_tokenizer_config(str(d)),
    other_files={"assets/spiece.model": ""},
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
  "config of a run, for a report": JsonFile(
    "config.json", RUN_CONFIG, lambda d: records.read_runs([str(d)], num_examples=1), reads_nan=True
  ),
  "environment of a run": JsonFile(
    "environment.json",
    {"cpus": 2},
    lambda d: records.read_runs([str(d)], num_examples=1),
    other_files={"config.json": "{}"},
    reads_nan=True,
  ),
  "several runs, for a command": JsonFile(
    "runs.json",
    SEVERAL_RUNS,
    read_settings_of_several_runs,
  ),
  "several runs": JsonFile(
    "runs.json", SEVERAL_RUNS, lambda d: output_files.read_runs(str(d / "runs.json")), reads_nan=True
  ),
  "results": JsonFile(
    "r.json",
    {"step": 3, "loss": 0.5, "f1": None},
    lambda d: output_files.read_results(str(d / "r.json")),
    reads_nan=True,
  ),
  "training loss": JsonFile(
    "training_loss.json",
    {"step": 3, "loss": 0.7, "guessing_loss": 0.69, "num_lines": 4},
    lambda d: find_failure(str(d), {}),
    reads_nan=True,
  ),
  "thresholds of labels": JsonFile(
    "thresholds.json",
    {"choice": "one", "split": "dev", "data_sha256": "ab", "thresholds": {"a": 0.25, "b": 0.5}},
    lambda d: read_thresholds(str(d), ["a", "b"]),
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
    lambda d: output_files._read_content(str(d / "t.json")),
    result_if_damaged=None,
  ),
  "metrics": JsonFile(
    "m.jsonl",
    {"step": 3, "loss": 0.5},
    lambda d: logs.read(str(d / "m.jsonl")),
    reads_nan=True,
    wrap=json_line,
  ),
  "results of experiments": JsonFile(
    "results.jsonl",
    RESULT_ROW,
    lambda d: runner.read_rows(str(d)),
    reads_nan=True,
    wrap=json_line,
  ),
  "scale of results": JsonFile("scale.json", {"scale": "smoke"}, lambda d: runner.check_scale(str(d), "smoke")),
  "distances of layers": JsonFile(
    "layers.json", {"l2": [1.0], "degrees": [2.0]}, lambda d: read_json(str(d / "layers.json"), layers.Distances)
  ),
  "experiment": JsonFile("e.json", EXPERIMENT_FILE, lambda d: catalog.load(str(d / "e.json"), reduced=True)),
  "lock": JsonFile(
    "lock",
    {"pid": 3, "host": "h", "token": "t"},
    lambda d: _parse_owner((d / "lock").read_bytes()),
    result_if_damaged=None,
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
