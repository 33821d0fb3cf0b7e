"""Records what the commands do in small golden files: `python -m tests.golden.record`.

tests/golden/test_golden.py records again and compares. The texts, vocabularies and data files are made here and by
other tests, and each model is tiny and trained for three steps without dropout. The files are:

    flags.json    the flags of every command: the values that they take, and their defaults
    shards.json   shards and manifests of every form of text, kind of vocabulary and format of examples; other texts
    runs.json     every task: the batches that the model sees, losses, weights, all files that a run writes, exports

Texts and integers are recorded as the beginnings of SHA-256 hashes, and compared exactly. Floating-point numbers are
compared with a tolerance, also those in texts, since processors round differently.
"""

from __future__ import annotations

import atexit
import csv
import dataclasses
import decimal
import gzip
import hashlib
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from docs.builder.commands import read_commands, targets
from tests.conftest import save_sentencepiece
from tests.data_prep.readers.forms import DOCUMENTS, FORMS, Form, as_text, json_lines
from tests.run_outputs import checkpoint_steps, read_checkpoint, read_json, read_json_lines
from tests.synthetic import TINY_MODEL_FLAGS
from tests.tasks.glue.archive import write_archive
from tests.tasks.small_datasets import SMALL_DATASETS
from tests.tokenization import byte_bpe_reference
from tests.torture.workplace import Finished, Workplace

DIRECTORY = Path(__file__).parent
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e-\d+")
_MAX_NUMBERS = 8  # of a text
_NUM_JOBS = 2  # commands at a time
# Ten documents of few words, and one with accents, Chinese characters and an emoji.
_UNICODE = ["Zoë can't see the café 🙂.", "老师看见了花园，船长卖了一封信。", "ALBERT sold 1,250 naïve letters."]
TEXTS = [*DOCUMENTS[:10], _UNICODE]
SENTENCES = [*itertools.chain.from_iterable(TEXTS)]

# Name -> the kind of the vocabulary, and the flags of data preparation. Each value of a flag occurs, and pairs that
# interact: the kind of the vocabulary decides what a word is, which masks and sentences depend on.
PREPARATIONS = {
  "sop": "sentencepiece",
  "nsp": "sentencepiece --sentence_prediction=nsp --max_predictions_per_seq=3",
  "no_masks": "sentencepiece --masking=none --num_shards=1",
  "sentences_of_a_document": "sentencepiece --sentence_prediction=none --input_format=doc_sentences --masking=none",
  "wordpiece": "wordpiece --short_seq_prob=0.5 --masked_lm_prob=0.3",
  "wordpiece_alone": "wordpiece --sentence_prediction=none --masking=none",
  "wordpiece_pairs": "wordpiece --sentence_prediction=nsp --input_format=sentence_pair --nodo_lower_case",
  "wordpiece_sentences": "wordpiece --sentence_prediction=none --input_format=full_sentences --keep_accents --ngram=1",
  "byte_level_bpe": "byte_level_bpe --compress",
  "byte_level_bpe_pairs": "byte_level_bpe --input_format=sentence_pair --random_seed=-3",
  "byte_level_bpe_sentences": "byte_level_bpe --sentence_prediction=none --input_format=full_sentences",
}


def _repeated_and_broken(documents: list[list[str]], folder: Path) -> list[Path]:
  (folder / "a.jsonl").write_bytes(json_lines([*documents, documents[1]]) + b'{"text": 1}\n')
  return [folder / "a.jsonl"]


_FORMS = FORMS | {"broken": Form(_repeated_and_broken)}
_FORM_FLAGS = {"broken": "--drop_duplicates --skip_bad_records=1 --sentences=lines"}
# Other commands that make files: name -> module and flags.
_OTHER_COMMANDS = {
  "texts": "data_prep.split_text --input_file={data}/text.txt --output_dir={out} --num_processes=1",
  "questions": "data_prep.question_texts --squad_file={data}/train.json --output_file={out}/questions.txt",
}


class Run(NamedTuple):
  """A run of a task.

  Attributes:
    task: name of the script's task.
    flags: its flags.
    export: the form in which the model is exported; "" if it is not.
    dataset: name of a dataset in tests/tasks/small_datasets.py, instead of files in flags.
  """

  task: str
  flags: str = ""
  export: str = ""
  dataset: str = ""


_CUSTOM = "--task_name=custom --max_seq_length=24 --train_file={data}/rows.csv --do_predict=false"
_RACE = "--train_file={data}/race.jsonl --eval_file={data}/race.jsonl --do_predict=false"
_SHARDS = "--input_file={data}/%s/*.tfrecord* --eval_input_file={data}/sop/*.tfrecord --predict_file={data}/masks.txt"
# The tasks of GLUE that the datasets of tests/tasks do not have, and flags of their runs.
_GLUE_FLAGS = {
  "CoLA": "--gradient_accumulation_steps=2",
  "SST-2": "--pad_to_max_length --optimizer=lamb",
  "QQP": "--layerwise_learning_rate_decay=0.8",
  "MNLI": "",
  "QNLI": "--formulation=ranking",
  "RTE": "--spm_model_file={data}/wordpiece/vocab.txt",
  "WNLI": "--spm_model_file={data}/byte_level_bpe/vocab.json",
}
RUNS = {
  "pretraining": Run("pretraining", _SHARDS % "sop", "fill_mask"),
  "dynamic masks": Run("pretraining", _SHARDS % "no_masks"),
  **{
    task: Run("classifier", f"--task_name={task} --data_dir={{data}}/glue --max_seq_length=32 {flags}")
    for task, flags in _GLUE_FLAGS.items()
  },
  "pairs": Run(
    "classifier",
    f"{_CUSTOM} --text_columns=text,other --label_column=kind --eval_file={{data}}/rows.csv --class_weights=balanced",
  ),
  "texts": Run(
    "classifier",
    f"{_CUSTOM} --text_columns=text --label_column=kind --eval_share=0.25 --do_predict "
    "--predict_file={data}/rows.csv",
  ),
  "numbers": Run("classifier", f"{_CUSTOM} --text_columns=text --label_column=number --regression --eval_share=0.25"),
  "race lines": Run("race", f"{_RACE} --max_seq_length=48 --max_qa_length=16"),
}
# The datasets of tests/tasks. An export takes seconds, so one of similar forms is enough.
# "own files" is a Parquet file, whose bytes depend on the version of its library.
_EXPORTED = {"multi_label", "v2", "folders", "columns"}
for _task, _datasets in SMALL_DATASETS.items():
  if _task != "pretraining":
    RUNS |= {
      f"{_task}, {_name}": Run(_task, "", _dataset.exports[0] if _name in _EXPORTED else "", _name)
      for _name, _dataset in _datasets.items()
      if _name != "own files"
    }
_TRAINING = (
  f"--spm_model_file={{data}}/spiece.model {' '.join(TINY_MODEL_FLAGS[1:])} --max_position_embeddings=64 "
  "--initializer_range=0.2 --hidden_dropout_prob=0 --attention_probs_dropout_prob=0 --classifier_dropout_prob=0 "
  "--train_batch_size=4 --eval_batch_size=8 --num_train_steps=3 --num_warmup_steps=1 --learning_rate=0.003 "
  "--log_every_steps=1 --precision=float32 --do_train --do_eval --do_predict"
)
_SCRIPTS = {"classifier": "run_classifier.py", "pretraining": "run_pretraining.py", "squad": "run_squad.py",
            "race": "run_race.py", "tagging": "run_tagging.py"}  # fmt: skip
_RECORDED_ELSEWHERE = {"config.json", "environment.json", "metrics.jsonl"}


def digest(content: bytes | str) -> str:
  """Returns the beginning of the SHA-256 of bytes, or of a text in UTF-8."""
  return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _text_entry(text: str) -> dict[str, Any]:
  """Returns the hash of a text without its floating-point numbers, and some of these numbers."""
  numbers = _NUMBER.findall(text)
  chosen = numbers[:: max(1, len(numbers) // _MAX_NUMBERS)][:_MAX_NUMBERS]
  entry: dict[str, Any] = {"text": digest(_NUMBER.sub("#", text))}
  return entry | ({"numbers": [format(decimal.Decimal(number), "f") for number in chosen]} if chosen else {})


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns nested objects as one: {"data.task_name": "MRPC", ...}."""
  flat: dict[str, Any] = {}
  for key, value in values.items():
    flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
  return flat


def _changes(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values that differ from those of another case. Those that only the other case has are None."""
  flat, flat_base = _flat(values), _flat(base)
  return {key: flat.get(key) for key in {**flat, **flat_base} if key not in flat or flat_base.get(key) != flat[key]}


class Recorder:
  """Records all golden files. Commands run in processes of `workplace`, in its directory."""

  def __init__(self, workplace: Workplace):
    self._workplace = workplace
    self._data = workplace.directory / "data"
    self._data.mkdir()
    (self._data / "text.txt").write_text(as_text(TEXTS), "utf-8")
    (self._data / "masks.txt").write_text("the [MASK] and the river [MASK]\nnobody sold the [MASK].\n")
    SMALL_DATASETS["squad"]["v2"].write(self._data)
    characters = sorted({character for sentence in SENTENCES for character in sentence.lower()} - {" "})
    words = sorted({word for sentence in SENTENCES for word in re.findall(r"[a-z]+", sentence.lower())})
    pieces = [(f"▁{word}", -5 - len(word) / 100) for word in words] + [(piece, -12.0) for piece in ["▁", *characters]]
    Path(save_sentencepiece(self._data, pieces)).rename(self._data / "spiece.model")
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    lines = [*specials, *words[::2], *characters, *(f"##{character}" for character in characters)]
    (self._data / "wordpiece").mkdir()
    (self._data / "wordpiece" / "vocab.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n", "utf-8")
    trained = byte_bpe_reference.train(80, " ".join(SENTENCES))
    byte_bpe_reference.write_vocabulary(self._data / "byte_level_bpe", *trained)
    self._vocabularies = {
      "sentencepiece": self._data / "spiece.model",
      "wordpiece": self._data / "wordpiece" / "vocab.txt",
      "byte_level_bpe": self._data / "byte_level_bpe" / "vocab.json",
    }

  def _run(self, *argv: object, **options: Any) -> Finished:
    finished = self._workplace.run([*map(str, argv)], **options)
    if finished.code:
      raise RuntimeError(f"{argv}: exit code {finished.code}: {finished.stderr}")
    return finished

  def flags(self) -> dict[str, Any]:
    """Name of each command -> its flags: the placeholder of the value or the choices, and the default."""
    return {
      command.title: {flag["name"]: f"{flag['value'] or 'switch'} = {flag['default']}" for flag in command.flags}
      for command in read_commands(targets())
    }

  # ---- data preparation ------------------------------------------------------------------------------------

  def shards(self) -> dict[str, Any]:
    """Name of each preparation -> hashes of its shards, and how its manifest differs from the first one."""
    entries: dict[str, Any] = {
      "vocabularies": {kind: digest(path.read_bytes()) for kind, path in self._vocabularies.items()}
    }
    cases: dict[str, tuple[Any, ...]] = {name: (None, *flags.split()) for name, flags in PREPARATIONS.items()}
    cases |= {name: (form, "sentencepiece", *_FORM_FLAGS.get(name, "").split()) for name, form in _FORMS.items()}
    with ThreadPoolExecutor(_NUM_JOBS) as pool:
      prepared = pool.map(lambda name: self._prepare(name, *cases[name]), cases)
    first: dict[str, Any] = {}
    for name, (shards, manifest) in zip(cases, prepared, strict=True):
      entries[name] = {"shards": shards, "manifest": _changes(manifest, first)}
      first = first or manifest
    for name, command in _OTHER_COMMANDS.items():
      out = self._data / "out"
      out.mkdir()
      self._run("-m", *command.format(data=self._data, out=out).split())
      entries[command.split()[0] + ", " + name] = {
        path.name: digest(path.read_bytes()) for path in sorted(out.rglob("*")) if path.is_file()
      }
      shutil.rmtree(out)
    return entries

  def _prepare(self, name: str, form: Form | None, vocabulary: str, *flags: str) -> tuple[list[str], dict[str, Any]]:
    """Runs data preparation on a form of text; without one, on a .txt and a .txt.gz file.

    Returns:
      The hashes of the shards, and the manifest.
    """
    folder, output = self._data / f"input of {name}", self._data / name
    folder.mkdir()
    if form is None:
      paths = [folder / "a.txt", folder / "b.txt.gz"]
      paths[0].write_text(as_text(TEXTS[:4]), "utf-8")
      paths[1].write_bytes(gzip.compress(as_text(TEXTS[4:]).encode(), mtime=0))
    else:
      paths = form.write(TEXTS, folder)
      settings = dataclasses.asdict(form.settings)
      given = {key: value for key, value in settings.items() if value != getattr(type(form.settings), key)}
      flags += tuple(f"--{key}={value}" for key, value in given.items())
    argv = ["--max_seq_length=32", "--dupe_factor=2", "--num_shards=2", f"--output_dir={output}", *flags]
    files = [f"--input_file={','.join(map(str, paths))}", f"--spm_model_file={self._vocabularies[vocabulary]}"]
    self._run("-m", "data_prep.create_pretraining_data", *files, *argv)
    shutil.rmtree(folder)
    contents = [path.read_bytes() for path in sorted(output.glob("*.tfrecord*"))]
    manifest = json.loads(self._without_paths((output / "manifest.json").read_text("utf-8")))
    del manifest["checksum"]  # of all the rest
    manifest["shards"] = [shard["examples"] for shard in manifest["shards"]]
    entries = manifest["settings"]["input_files"]
    for index, entry in enumerate(entries):
      if form is not None or not entry["file"].endswith(".txt"):  # other versions of libraries write other bytes
        entries[index] = sorted(entry)
    decompressed = [gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content for content in contents]
    return [*map(digest, decompressed)], manifest

  # ---- runs ------------------------------------------------------------------------------------------------

  def runs(self) -> dict[str, Any]:
    """Name of each run -> its batches, losses, weights and files, and what its exports answer."""
    write_archive(self._data / "glue", [*_GLUE_FLAGS, "diagnostic"], num_rows=4)
    with (self._data / "rows.csv").open("w", encoding="utf-8", newline="") as file:
      rows = [
        (text, f"{other},\n{index}", "good" if index % 3 else "bad, very", index / 4)
        for index, (text, other) in enumerate(zip(SENTENCES[:13], SENTENCES[13:], strict=False))
      ]
      csv.writer(file).writerows([("text", "other", "kind", "number"), *rows])
    questions = [
      {"article": " ".join(TEXTS[i]), "question": "who _ ?", "options": SENTENCES[i : i + 2 + i % 3], "answer": i % 2}
      for i in range(8)
    ]
    (self._data / "race.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    with ThreadPoolExecutor(_NUM_JOBS) as pool:
      trained = pool.map(self._train, RUNS)
    entries: dict[str, Any] = {}
    first: dict[str, dict[str, Any]] = {}
    for (name, run), (entry, config) in zip(RUNS.items(), trained, strict=True):
      entries[name] = {**entry, "config": _changes(config, first.get(run.task, {}))}
      first.setdefault(run.task, config)
    return entries

  def _train(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains, evaluates, predicts and exports. Returns the entry, and the contents of config.json."""
    run, output = RUNS[name], self._workplace.directory / f"run_{re.sub('[^A-Za-z0-9]+', '_', name)}"
    flags = _TRAINING.split() + ["--from_scratch"] * (run.task != "pretraining") + run.flags.split()
    if run.dataset:
      folder = output.with_name(f"data_{output.name}")
      folder.mkdir()
      flags += [f"--{key}={value}" for key, value in SMALL_DATASETS[run.task][run.dataset].write(folder).items()]
    flags = [flag.format(data=self._data) for flag in flags]
    prelude = ("tests.golden.record", "observe", {"output_dir": str(output)})
    self._run(_SCRIPTS[run.task], *flags, f"--output_dir={output}", prelude=prelude)
    entry = read_json(output.with_name(f"{output.name}.json"))
    entry["metrics"] = read_json_lines(output / "metrics.jsonl")
    for line in entry["metrics"]:
      del line["examples_per_second"]
    paths = [path for path in sorted(output.iterdir()) if ".tfevents." not in path.name]
    entry["files"] = {path.name: self._file_entry(path) for path in paths if path.name not in _RECORDED_ELSEWHERE}
    if run.export:
      entry["export"] = self._export(output, run.export)
    return entry, json.loads(self._without_paths((output / "config.json").read_text()))

  def _without_paths(self, text: str) -> str:
    return text.replace(str(self._workplace.directory), "DIR")

  def _file_entry(self, path: Path) -> Any:
    if path.is_dir() or path.suffix == ".png":
      return {}
    text = self._without_paths(path.read_bytes().decode("latin-1"))
    if path.name.startswith("unsure_"):  # the order of nearly equal probabilities depends on the processor
      text = "\n".join(sorted(text.splitlines(), key=lambda line: _NUMBER.sub("#", line)))
    return _text_entry(text)

  def _export(self, run: Path, form: str) -> dict[str, Any]:
    """Exports the model of a run. Returns the names of the files, and the answers to the examples."""
    models = self._workplace.directory / "models"
    argv = (f"--checkpoint={run}", f"--task={form}", f"--output_dir={models}", f"--name={run.name}")
    self._run("-m", "albert.export", *argv)
    version = models / run.name / "1"
    examples = version / "examples" / "serving_default.json"
    return {
      "files": digest("\n".join(sorted(str(path.relative_to(version)) for path in version.rglob("*")))),
      "requests": digest(examples.read_bytes()),
      "answers": _text_entry(examples.with_suffix(".answer.json").read_text(encoding="utf-8")),
    }


def observe(output_dir: str) -> None:
  """Makes the steps of a command eager, and writes its batches and weights to output_dir.json when it ends."""
  import tensorflow as tf

  from albert.runs import figures
  from tests.report.run_files import one_pixel_png

  vars(figures)["png"] = lambda figure: one_pixel_png()
  tf.config.run_functions_eagerly(True)
  features: dict[str, Any] = {}
  batches: list[str] = []
  run = tf.distribute.OneDeviceStrategy.run

  def observed_run(self: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
    for batch in args:
      if isinstance(batch, Mapping) and "input_ids" in batch:
        arrays = {name: np.asarray(values) for name, values in batch.items()}
        hashes = sorted(digest(array.tobytes()) for array in arrays.values())  # without names, which may change
        batches.append(f"{list(arrays['input_ids'].shape)} {digest(''.join(hashes))}")
        for name, array in arrays.items():
          features.setdefault(f"{name} {array.dtype}", hashlib.sha256()).update(array.tobytes())
    return run(self, fn, args, kwargs, options)

  tf.distribute.OneDeviceStrategy.run = observed_run
  atexit.register(_write_observations, Path(output_dir), features, batches)


def _write_observations(output_dir: Path, features: Mapping[str, Any], batches: Sequence[str]) -> None:
  """Writes the hashes of batches, and the norms of the weights and moments of the newest checkpoint."""
  if not checkpoint_steps(output_dir):
    return  # the command has failed
  squares: dict[str, float] = {}
  tensors = read_checkpoint(output_dir)
  for name, tensor in tensors.items():
    if tensor.dtype.kind == "f":
      weight, slot = re.fullmatch(r"(.*?)(?:/(adam_.))?", name).groups("")  # type: ignore[union-attr]
      # The bias of a head is not a group of its own: its gradient may be 0, and is rounded in many ways.
      group = ("/".join(weight.split("/")[:2]) if "/" in weight else "head") + f" {slot}".rstrip()
      squares[group] = squares.get(group, 0.0) + float(np.square(tensor.astype(np.float64)).sum())
  shapes = "\n".join(f"{name} {tensor.dtype} {tensor.shape}" for name, tensor in sorted(tensors.items()))
  content = {
    "features": {name: features[name].hexdigest()[:16] for name in sorted(features)},
    "batches": list(batches),
    "names of weights": digest(shapes),
    "norms": {group: square**0.5 for group, square in sorted(squares.items())},
  }
  output_dir.with_name(f"{output_dir.name}.json").write_text(json.dumps(content))


def record() -> dict[str, dict[str, Any]]:
  """Runs all commands. Returns name of a golden file -> case -> entry."""
  with tempfile.TemporaryDirectory(prefix="golden-") as directory, Workplace(Path(directory, "work")) as workplace:
    recorder = Recorder(workplace)
    return {"flags": recorder.flags(), "shards": recorder.shards(), "runs": recorder.runs()}


def main(directory: str = str(DIRECTORY)) -> None:
  for name, cases in record().items():
    text = json.dumps(cases, ensure_ascii=False, indent=1)
    # A list of numbers or texts is on one line.
    text = re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s+\]", lambda match: "[" + re.sub(r"\n\s+", " ", match[1]) + "]", text)
    Path(directory, f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
  main(*sys.argv[1:])
