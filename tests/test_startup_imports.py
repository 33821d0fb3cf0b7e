"""What a command imports before it refuses its flags or files, and what it never imports.

Imports are most of the time that a command needs to start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAIN = ["--do_train", "--output_dir={new}"]
CLASSIFIER = ["run_classifier.py", *TRAIN, "--task_name=custom", "--text_columns=text", "--from_scratch"]
SQUAD = ["run_squad.py", *TRAIN, "--from_scratch"]
RACE = ["run_race.py", *TRAIN, "--from_scratch"]
PRETRAINING = ["run_pretraining.py", *TRAIN, "--input_file={shards}"]
EXPORT = ["-m", "albert.export", "--output_dir={new}"]
CONVERT = ["-m", "albert.convert", "--output_dir={new}", "--format=tf1"]
PREPARE = ["-m", "data_prep.create_pretraining_data", "--output_dir={new}", "--max_seq_length=32"]

# Command -> the error that it ends with.
REFUSED = [
  ([*PRETRAINING, "--learning_rate=0"], "flag --learning_rate=0: must be"),
  ([*PRETRAINING, "--lerning_rate=1"], "Unknown command line flag 'lerning_rate'. Did you mean: learning_rate ?"),
  (
    [*PRETRAINING, "--early_stopping_patience=2"],
    "early_stopping_patience=2 needs evaluations: give --eval_every_steps",
  ),
  ([*PRETRAINING, "--model=albert_huge"], "--model=albert_huge: unknown"),
  ([*PRETRAINING, "--recipe=absent"], "--recipe=absent: no such file or recipe"),
  ([*PRETRAINING, "--nodo_train"], "nothing to do: give --do_train"),
  ([*PRETRAINING, "--num_runs=2"], "--num_runs=2 compares runs"),
  ([*PRETRAINING, "--output_dir="], "--output_dir is missing"),
  ([*PRETRAINING, "--output_dir={texts}/new"], "{texts}/new: cannot be made, since {texts} is not a directory"),
  ([*PRETRAINING, "--input_file=absent*"], "--input_file: 'absent*' matches no file"),
  ([*PRETRAINING, "--input_file="], "--do_train needs --input_file"),
  ([*PRETRAINING, "--do_eval"], "evaluation needs --eval_input_file"),
  ([*PRETRAINING, "--do_eval", "--eval_input_file=absent"], "--eval_input_file: 'absent' matches no file"),
  ([*PRETRAINING, "--do_predict", "--predict_file=absent"], "--do_predict needs --predict_file"),
  ([*PRETRAINING, "--spm_model_file=absent"], "absent: cannot read it (No such file or directory)"),
  ([*PRETRAINING, "--albert_config_file=absent"], "absent: no such file"),
  ([*PRETRAINING, "--init_checkpoint=absent"], "--init_checkpoint=absent: no checkpoint there"),
  ([*PRETRAINING, "--init_checkpoint=absent.npz"], "--init_checkpoint=absent.npz: no such file"),
  ([*PRETRAINING, "--init_checkpoint=a.bin"], "--init_checkpoint=a.bin: is a PyTorch pickle"),
  ([*CLASSIFIER, "--train_file=absent"], "--train_file=absent: no such file"),
  ([*CLASSIFIER, "--train_file={texts}", "--nofrom_scratch"], "--do_train needs --init_checkpoint"),
  ([*CLASSIFIER, "--train_file={texts}", "--do_eval"], "--eval_file is missing"),
  ([*CLASSIFIER, "--train_file={texts}", "--do_predict", "--predict_file=x"], "--predict_file=x: no such file"),
  ([*CLASSIFIER, "--train_file={texts}"], "--spm_model_file is missing"),
  ([*CLASSIFIER, "--train_file={texts}", "--spm_model_file=absent"], "absent: cannot read it"),
  ([*CLASSIFIER, "--train_file={texts}", "--spm_model_file={spm}", "--vocab_size=9"], "--spm_model_file={spm} has "),
  ([*CLASSIFIER, "--train_file={texts}", "--max_seq_length=513"], "--max_seq_length=513: the model has 512 positions"),
  ([*CLASSIFIER, "--task_name=MRPC", "--data_dir=absent"], "--data_dir=absent: neither absent/MRPC/train.tsv nor"),
  ([*CLASSIFIER, "--task_name=AX", "--do_eval"], "AX has no labels to evaluate with"),
  ([*SQUAD, "--train_file=absent"], "--train_file: 'absent' matches no file"),
  ([*SQUAD, "--train_file={texts}", "--do_eval"], "--eval_file (or --predict_file) is missing"),
  ([*RACE, "--data_dir=absent"], "--data_dir: absent/train holds neither"),
  ([*EXPORT, "--checkpoint=absent"], "--checkpoint=absent: no checkpoint there"),
  ([*EXPORT, "--checkpoint={npz}"], "--checkpoint={npz}: has no albert_config.json beside it"),
  ([*EXPORT, "--checkpoint={npz}", "--task=absent"], "--task=absent: must be one of"),
  ([*EXPORT, "--checkpoint={npz}", "--formats=absent"], "--formats=absent: must be one of"),
  ([*EXPORT, "--checkpoint={npz}", "--name=a/b"], "--name=a/b: must be a plain name"),
  ([*CONVERT, "--init_checkpoint=absent"], "--init_checkpoint=absent: no checkpoint there"),
  (
    [*CONVERT, "--init_checkpoint={npz}"],
    "--init_checkpoint={npz}: has no albert_config.json or config.json beside it",
  ),
  (["-m", "albert.predict", "--model=absent"], "--model=absent: neither a SavedModel nor"),
  (["-m", "albert.predict", "--model=absent", "--input_file=x"], "--input_file=x: no such file"),
  ([*PREPARE, "--input_file=absent", "--spm_model_file={spm}"], "--input_file: 'absent' matches no file"),
  ([*PREPARE, "--input_file={texts}", "--spm_model_file=absent"], "absent: cannot read it"),
  ([*PRETRAINING, "--spm_model_file={spm}", "--do_eval"], "evaluation needs --eval_input_file"),
]
# Those that `make test` runs; all of them take half a minute.
_FAST = (9, 19, 32)


def run(argv: list[str], directory: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
  """Runs a command in a new interpreter. Returns its result, and the names of the modules that it has imported."""
  *flag, name = argv[: 2 if argv[0] == "-m" else 1]
  call = (
    f'run_module({name!r}, run_name="__main__", alter_sys=True)' if flag else f'run_path({name!r}, None, "__main__")'
  )
  program = f"""
import json, runpy, sys
sys.argv = {[str(ROOT / name), *argv[len(flag) + 1 :]]!r}
try:
  runpy.{call}
finally:
  with open({str(directory / "modules.json")!r}, "w") as file:
    json.dump(sorted(sys.modules), file)
"""
  environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
  command = [sys.executable, "-c", program]
  result = subprocess.run(
    command,
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
    stdin=subprocess.DEVNULL,
  )
  return result, set(json.loads((directory / "modules.json").read_text()))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> dict[str, str]:
  """Small files, by their names in REFUSED."""
  directory = tmp_path_factory.mktemp("inputs")
  (directory / "texts.tsv").write_text("text\tlabel\nfine\tgood\npoor\tbad\n")
  (directory / "shard.tfrecord").write_bytes(b"not read")
  (directory / "weights.npz").write_bytes(b"not read")
  names = {"texts": "texts.tsv", "shards": "shard.tfrecord", "npz": "weights.npz"}
  return {name: str(directory / file) for name, file in names.items()} | {"spm": spm_model}


@pytest.mark.parametrize(
  ("argv", "error"),
  [pytest.param(*case, marks=() if i in _FAST else pytest.mark.thorough) for i, case in enumerate(REFUSED)],
  ids=[f"{[word for word in argv if word[:2] != '--'][-1]}-{argv[-1]}" for argv, _ in REFUSED],
)
def test_flags_and_files_are_refused_without_tensorflow(
  argv: list[str], error: str, inputs: dict[str, str], tmp_path: Path
) -> None:
  values = inputs | {"new": str(tmp_path / "new")}
  result, modules = run([word.format(**values) for word in argv], tmp_path)
  assert result.returncode == 2, result.stderr
  assert result.stderr.splitlines()[-1].startswith(f"error: {error.format(**values)}")
  assert not {"tensorflow", "tf_keras", "keras", "scipy", "sklearn"} & modules
  assert not (tmp_path / "new").exists()


# Libraries that no training and no answer of an exported model needs.
UNUSED = {"keras", "sklearn", "scipy", "pandas", "h5py", "PIL", "pyarrow", "matplotlib", "tensorflow_text"}


def imported_by(program: str, **environment: str) -> tuple[set[str], str]:
  """Runs a program in a new interpreter. Returns the modules that it has imported, and what it printed."""
  variables = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"} | environment
  code = f"from albert import startup\nstartup.begin()\n{program}\nimport sys\nprint(*sys.modules)"
  command = [sys.executable, "-c", code]
  result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True, timeout=240)
  *printed, modules = result.stdout.splitlines()
  return set(modules.split()), "\n".join(printed)


def test_a_training_imports_only_what_it_needs() -> None:
  tasks = "\n".join(f"import albert.tasks.{name}" for name in ("pretraining", "glue.task", "squad.task", "race.task"))
  modules, printed = imported_by(
    "with startup.quick_imports():\n  import albert.multi_seed\n" + tasks + "\nimport gc\nprint(gc.isenabled())"
  )
  assert {"tensorflow", "tf_keras", "albert.tasks.race.task"} <= modules
  assert not UNUSED & modules
  assert printed == "True"


@pytest.mark.thorough
def test_an_exported_model_needs_no_keras() -> None:
  modules, printed = imported_by(
    """
from albert.predict.tensorflow_import import import_tensorflow
tf = import_tensorflow()
from tensorflow.python.framework import op_def_registry
print(op_def_registry.get("SentencepieceTokenizeOp").name)
"""
  )
  assert "tensorflow" in modules
  assert not (UNUSED | {"tf_keras", "albert.models"}) & modules
  assert printed == "SentencepieceTokenizeOp"


def test_libraries_are_hidden_from_tensorflow_only() -> None:
  """A library can be imported after TensorFlow, and importing albert without a command changes nothing."""
  program = """
import gc, sys
def is_importable():
  try:
    import scipy
    return True
  except ModuleNotFoundError:
    return False
with startup.quick_imports("json.absent"):
  print(is_importable(), gc.isenabled(), "json.absent" in sys.modules)
print(is_importable(), gc.isenabled(), "json.absent" in sys.modules)
startup._State.has_begun = False
with startup.quick_imports("json.absent"):
  print(gc.isenabled(), "json.absent" in sys.modules)
"""
  assert imported_by(program)[1] == "False False True\nTrue True False\nTrue False"


@pytest.mark.parametrize(("given", "used"), [({}, "1"), ({"TF_USE_LEGACY_KERAS": "0"}, "0")])
def test_a_choice_of_keras_stays(given: dict[str, str], used: str) -> None:
  assert imported_by("import os\nprint(os.environ['TF_USE_LEGACY_KERAS'])", **given)[1] == used
