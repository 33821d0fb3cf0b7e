"""What a command imports before it refuses its flags or files, and what it never imports.

Imports are most of the time that a command needs to start.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_interpreter import ROOT, command_code, run_fresh
from tests.synthetic import write_shards

# Beginnings of the commands in REFUSED_COMMANDS. A name in braces stands for a path: {new} for a directory that does
# not exist, the others for files of the fixture `input_paths`.
TRAIN_FLAGS = ["--do_train", "--output_dir={new}"]
CLASSIFIER = ["run_classifier.py", *TRAIN_FLAGS, "--task_name=custom", "--text_columns=text", "--from_scratch"]
SQUAD = ["run_squad.py", *TRAIN_FLAGS, "--from_scratch"]
RACE = ["run_race.py", *TRAIN_FLAGS, "--from_scratch"]
TAGGING = ["run_tagging.py", *TRAIN_FLAGS, "--from_scratch"]
PRETRAINING = ["run_pretraining.py", *TRAIN_FLAGS, "--input_file={shards}"]
EXPORT = ["-m", "albert.export", "--output_dir={new}"]
CONVERT = ["-m", "albert.convert", "--output_dir={new}", "--format=tf1"]
PREPARE = ["-m", "data_prep.create_pretraining_data", "--output_dir={new}", "--max_seq_length=32"]

# Commands, and the beginning of the error that each ends with.
REFUSED_COMMANDS = [
  ([*PRETRAINING, "--lerning_rate=1"], "Unknown command line flag 'lerning_rate'. Did you mean: learning_rate ?"),
  (
    [*PRETRAINING, "--early_stopping_patience=2"],
    "early_stopping_patience=2 needs evaluations: give --eval_every_steps",
  ),
  ([*PRETRAINING, "--recipe=absent"], "--recipe=absent: no such file or recipe"),
  ([*PRETRAINING, "--nodo_train"], "nothing to do: give --do_train"),
  (
    ["run_pretraining.py", "--dry_run", "--chip=v3", "--model=albert_xxlarge", "--max_seq_length=512"],
    "albert_xxlarge on v3-8: 512 examples of 512 tokens on each of 8 cores do not fit",
  ),
  ([*PRETRAINING, "--num_runs=2"], "--num_runs=2 compares runs"),
  ([*PRETRAINING, "--output_dir="], "--output_dir is missing"),
  ([*PRETRAINING, "--output_dir={texts}/new"], "{texts}/new: cannot be made, since {texts} is not a directory"),
  ([*PRETRAINING, "--input_file=absent*"], "--input_file: 'absent*' matches no file"),
  ([*PRETRAINING, "--input_file="], "--do_train needs --input_file"),
  ([*PRETRAINING, "--do_eval"], "evaluation needs held-out documents"),
  ([*PRETRAINING, "--find_learning_rate"], "evaluation needs held-out documents"),
  ([*PRETRAINING, "--do_predict", "--predict_file=absent"], "--do_predict needs --predict_file"),
  ([*PRETRAINING, "--spm_model_file=absent"], "absent: cannot read it (No such file or directory)"),
  ([*PRETRAINING, "--albert_config_file=absent"], "absent: no such file"),
  ([*PRETRAINING, "--init_checkpoint=absent"], "--init_checkpoint=absent: no checkpoint there"),
  ([*PRETRAINING, "--init_checkpoint=a.bin"], "--init_checkpoint=a.bin: no such file"),
  ([*CLASSIFIER, "--train_file=absent"], "--train_file=absent: no such file"),
  ([*CLASSIFIER, "--train_file={texts}", "--nofrom_scratch"], "--do_train needs --init_checkpoint"),
  ([*CLASSIFIER, "--train_file={texts}", "--do_eval"], "--eval_file is missing"),
  ([*CLASSIFIER, "--train_file={texts}", "--do_predict", "--predict_file=x"], "--predict_file=x: no such file"),
  ([*CLASSIFIER, "--train_file={texts}"], "--spm_model_file is missing"),
  ([*CLASSIFIER, "--train_file={texts}", "--spm_model_file={spm}", "--vocab_size=9"], "--spm_model_file={spm} has "),
  ([*CLASSIFIER, "--train_file={texts}", "--max_seq_length=513"], "--max_seq_length=513: the model has 512 positions"),
  (
    [*CLASSIFIER, "--spm_model_file={spm}", "--train_file={texts}", "--text_columns=a,absent"],
    "{texts}, line 1: no column 'a'; there are: 'text', 'label'",
  ),
  (
    [*CLASSIFIER, "--spm_model_file={spm}", "--train_file={texts}", "--do_eval", "--eval_file={dev}"],
    "{dev}, line 3: label 'ugly' is not a label",
  ),
  ([*CLASSIFIER, "--spm_model_file={spm}", "--train_file={parquet}"], "{parquet}: cannot be read ("),
  (
    [*CLASSIFIER, "--spm_model_file={spm}", "--train_file={texts}", "--eval_share=0.5"],
    "{texts}, line 3: too few texts of the label 'bad' to hold",
  ),
  ([*CLASSIFIER, "--task_name=MRPC", "--data_dir=absent"], "--data_dir=absent: neither absent/MRPC/train.tsv nor"),
  ([*CLASSIFIER, "--task_name=AX", "--do_eval"], "AX has no labels to evaluate with"),
  ([*TAGGING], "--train_file is missing: the train set"),
  ([*TAGGING, "--train_file={texts}", "--do_eval"], "--eval_file is missing: the dev set"),
  ([*TAGGING, "--scheme=IOB1"], "flag --scheme=IOB1: value should be one of <BIO|BILOU|BIOES|IO|plain>"),
  ([*SQUAD, "--train_file=absent"], "--train_file: 'absent' matches no file"),
  ([*SQUAD, "--train_file={texts}", "--do_eval"], "--eval_file (or --predict_file) is missing"),
  ([*RACE, "--train_file=train.csv", "--do_eval"], "--train_file=train.csv: a table: give JSON lines"),
  ([*RACE, "--nodo_train", "--do_predict"], "--output_dir={new}: holds no run: train first, or give --init_check"),
  ([*RACE, "--data_dir=absent"], "--data_dir: absent/train does not exist"),
  ([*EXPORT, "--checkpoint=absent"], "--checkpoint=absent: no checkpoint there"),
  ([*EXPORT, "--checkpoint={weights}"], "--checkpoint={weights}: has no albert_config.json or config.json beside it"),
  ([*EXPORT, "--checkpoint={weights}", "--task=absent"], "--task=absent: must be one of"),
  ([*EXPORT, "--checkpoint={weights}", "--formats=absent"], "--formats=absent: must be one of"),
  ([*EXPORT, "--checkpoint={weights}", "--eval_file=absent.tsv"], "--eval_file=absent.tsv: no such file"),
  ([*EXPORT, "--checkpoint={weights}", "--name=a/b"], "--name=a/b: must be a plain name"),
  (
    [*EXPORT, "--checkpoint={weights}", "--name=a[1]"],
    "{new}/a[1]: TensorFlow cannot load a SavedModel from a path with [",
  ),
  ([*CONVERT, "--init_checkpoint=absent"], "--init_checkpoint=absent: no checkpoint there"),
  (["-m", "albert.embed", "--checkpoint=absent", "--input_file=x", "--output_file=x.npy"], "--checkpoint=absent: no"),
  (["-m", "albert.predict", "--model=absent"], "--model=absent: no such directory: give an export"),
  (["-m", "albert.predict", "--model=absent", "--input_file=x"], "--input_file=x: no such file"),
  ([*PREPARE, "--input_file=absent", "--spm_model_file={spm}"], "--input_file: 'absent' matches no file"),
]
# Ids of the commands that `make test` runs. Running every command of REFUSED_COMMANDS takes half a minute.
_IDS_IN_MAKE_TEST = (
  "run_pretraining.py---input_file=absent*",
  "run_classifier.py---train_file=absent",
  "albert.export---checkpoint=absent",
)


def refusal_id(command: list[str]) -> str:
  """Returns the script or module of a command, and its last flag."""
  names = [word for word in command if not word.startswith("--")]
  return f"{names[-1]}-{command[-1]}"


@pytest.fixture(scope="module")
def input_paths(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> dict[str, str]:
  """Paths of small files, by their names in the commands above."""
  directory = tmp_path_factory.mktemp("inputs")
  (directory / "texts.tsv").write_text("text\tlabel\nfine\tgood\npoor\tbad\n")
  (directory / "dev.tsv").write_text("text\tlabel\nfine\tgood\npoor\tugly\n")
  (directory / "table.parquet").write_bytes(b"no table")
  (directory / "weights.safetensors").write_bytes(b"not read")
  return {
    "texts": str(directory / "texts.tsv"),
    "dev": str(directory / "dev.tsv"),
    "parquet": str(directory / "table.parquet"),
    "shards": write_shards(directory / "shards", [4])[0],
    "weights": str(directory / "weights.safetensors"),
    "spm": spm_model,
  }


@pytest.mark.parametrize(
  ("command", "error"),
  [
    pytest.param(
      command,
      error,
      marks=() if refusal_id(command) in _IDS_IN_MAKE_TEST else pytest.mark.thorough,
      id=refusal_id(command),
    )
    for command, error in REFUSED_COMMANDS
  ],
)
def test_flags_and_files_are_refused_without_tensorflow(
  command: list[str], error: str, input_paths: dict[str, str], tmp_path: Path
) -> None:
  paths = input_paths | {"new": str(tmp_path / "new")}
  process, modules = run_fresh(command_code([word.format(**paths) for word in command]), tmp_path)
  assert process.returncode == 2, process.stderr
  assert process.stderr.splitlines()[-1].startswith(f"error: {error.format(**paths)}")
  assert not {"tensorflow", "tf_keras", "keras", "scipy", "sklearn"} & modules
  assert not (tmp_path / "new").exists()


# Libraries that neither training nor the predictions of an exported model need.
UNUSED_LIBRARIES = {"keras", "sklearn", "scipy", "pandas", "h5py", "PIL", "pyarrow", "matplotlib", "tensorflow_text"}


def run_after_startup(code: str, directory: Path, **environment: str) -> tuple[str, set[str]]:
  """Runs code as a command does, after startup.begin(). Returns its output, and the modules that it has imported."""
  process, modules = run_fresh(f"from albert import startup\nstartup.begin()\n{code}", directory, **environment)
  assert (process.returncode, process.stderr) == (0, "")  # TensorFlow prints nothing
  return process.stdout.removesuffix("\n"), modules


def test_a_training_imports_only_what_it_needs(tmp_path: Path) -> None:
  output, modules = run_after_startup(
    """
with startup.quick_imports():
  import albert.multi_seed
import albert.tasks.pretraining.model
import albert.tasks.glue.model
import albert.tasks.squad.model
import albert.tasks.race.model
import gc
print(gc.isenabled())
""",
    tmp_path,
  )
  assert {"tensorflow", "tf_keras", "albert.tasks.race.model"} <= modules
  assert not UNUSED_LIBRARIES & modules
  assert output == "True"


@pytest.mark.thorough
def test_an_exported_model_needs_no_keras(tmp_path: Path) -> None:
  output, modules = run_after_startup(
    """
from albert.predict.exported_model import import_tensorflow
tf = import_tensorflow()
from tensorflow.python.framework import op_def_registry
print(op_def_registry.get("SentencepieceTokenizeOp").name)
""",
    tmp_path,
  )
  assert "tensorflow" in modules
  assert not (UNUSED_LIBRARIES | {"tf_keras", "albert.models"}) & modules
  assert output == "SentencepieceTokenizeOp"


def test_libraries_are_hidden_only_while_tensorflow_is_imported(tmp_path: Path) -> None:
  """A library can be imported after TensorFlow. Without startup.begin(), only messages are hidden."""
  code = """
import gc, os, sys
def is_importable():
  try:
    import scipy
    return True
  except ModuleNotFoundError:
    return False
with startup.quick_imports("json.absent"):  # an additional module to hide
  print(is_importable(), gc.isenabled(), "json.absent" in sys.modules)
print(is_importable(), gc.isenabled(), "json.absent" in sys.modules)
startup._State.has_begun = False
with startup.quick_imports("json.absent"):
  os.write(2, b"I0000 00:00:1.2 1 port.cc:1] oneDNN\\n")
  print(gc.isenabled(), "json.absent" in sys.modules)
"""
  output, _ = run_after_startup(code, tmp_path)  # the message is hidden
  assert output == "False False True\nTrue True False\nTrue False"


@pytest.mark.parametrize(
  "code",
  [
    "from albert.weights.arrays import open_bundle\nopen_bundle('tests/golden/absent', '--init_checkpoint')",
    "from albert.weights.checkpoints import write_bundle\nwrite_bundle(sys.argv[0] + '/absent/model.ckpt', {})",
    "from albert.export.checkpoint import _try_form\n_try_form(types.SimpleNamespace(heads=()), 'classifier', {})",
  ],
)
def test_weights_are_opened_without_the_messages_of_tensorflow(code: str, tmp_path: Path) -> None:
  run = f"""
import contextlib, sys, types
with contextlib.suppress(Exception):
  exec({code!r})
"""
  _, modules = run_after_startup(run, tmp_path)
  assert "tensorflow" in modules


def run_filtered(code: str) -> list[str]:
  """Returns the lines on standard error of code that writes `line(LETTER)` as TensorFlow does."""
  code = f"""
import os, subprocess
from albert.startup import without_import_messages
line = lambda letter: os.write(2, letter.encode() + b"0000 00:00:1.2 1 a.cc:1] message\\n")
{code}
"""
  process = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, timeout=20
  )
  return process.stderr.splitlines()


def test_what_an_import_prints_before_it_aborts_is_shown() -> None:
  lines = run_filtered("with without_import_messages(): line('I'); line('E'); os.write(2, b'the end'); os.abort()")
  assert lines[:2] == ["E0000 00:00:1.2 1 a.cc:1] message", "the end"]


def test_imports_in_two_threads_and_a_process_that_goes_on_do_not_block_the_filter() -> None:
  lines = run_filtered("""
imports = without_import_messages(), without_import_messages()
imports[0].__enter__(), imports[1].__enter__()
process = subprocess.Popen(["sleep", "60"])
line("I")
imports[0].__exit__(None, None, None), imports[1].__exit__(None, None, None)
process.kill()
line("W")
""")
  assert lines == ["W0000 00:00:1.2 1 a.cc:1] message"]


def test_a_command_that_a_signal_ends_in_an_import_has_printed_its_line(tmp_path: Path) -> None:
  code = "import os\nfrom albert import startup\nstartup.begin()\n"
  code += "with startup.without_import_messages():\n  os.kill(os.getpid(), 15)"
  with (tmp_path / "stderr").open("w") as file:
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=file, check=False)
  assert (process.returncode, (tmp_path / "stderr").read_text()) == (143, "stopped by SIGTERM\n")


def test_an_import_needs_no_grep_and_no_standard_error() -> None:
  code = f"'{sys.executable}' -c 'import albert; print(albert.Tokenizer.__name__)'"
  for command in (f"{code} 2>&-", f"PATH=/absent {code}"):
    process = subprocess.run(["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert process.stdout == "Tokenizer\n"


@pytest.mark.parametrize(("environment", "used"), [({}, "1"), ({"TF_USE_LEGACY_KERAS": "0"}, "0")])
def test_the_users_choice_of_keras_is_kept(environment: dict[str, str], used: str, tmp_path: Path) -> None:
  code = "import os\nprint(os.environ['TF_USE_LEGACY_KERAS'])"
  output, _ = run_after_startup(code, tmp_path, **environment)
  assert output == used
