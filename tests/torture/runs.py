"""Small files, commands and finished runs that the parts of the campaign share. Each is made at its first use."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.conftest import english_like_documents, train_small_model
from tests.synthetic import TINY_MODEL_FLAGS
from tests.tasks.glue.archive import write_archive
from tests.tasks.race.folders import write_made_up_race
from tests.tasks.squad.question_files import write_made_up_squad

if TYPE_CHECKING:
  from tests.torture.workplace import Finished

Value = TypeVar("Value")


class MakingFailed(Exception):
  """A command that makes a shared file or run has failed."""


class shared(cached_property[Value]):
  """A cached property whose first use makes a file or a run. Other threads wait until it is made."""

  def __get__(self, owner: Any, kind: type[Any] | None = None) -> Any:  # type: ignore[override]
    with owner._lock if owner is not None else contextlib.nullcontext():
      return super().__get__(owner, kind)


class Runs:
  """Shared files and runs. A case must not change them: it works on copies.

  Each method `..._command` returns the arguments of one command, which end with `flags`. A flag that is given twice has
  its last value, so `flags` can replace the others.
  """

  directory: Path
  _lock: threading.RLock

  def run(self, argv: Sequence[str], **options: Any) -> Finished:
    """Runs a command and waits for its end. Workplace implements it."""
    raise NotImplementedError

  def make_output(self, name: str, make_argv: Callable[[Path], list[str]]) -> Path:
    """Runs the command that `make_argv` returns for the output directory `name`. Returns this directory."""
    output = self.directory / name
    finished = self.run(make_argv(output))
    if finished.code:
      raise MakingFailed(f"{name}: exit code {finished.code}: {finished.stderr}")
    return output

  # ---- files -----------------------------------------------------------------------------------------------

  @shared
  def corpus(self) -> Path:
    """A text file of 300 documents."""
    path = self.directory / "corpus.txt"
    documents = english_like_documents(300)
    path.write_text("".join("\n".join(document) + "\n\n" for document in documents), encoding="utf-8")
    return path

  @shared
  def vocabulary(self) -> Path:
    """A SentencePiece model of at most 800 pieces, trained on `corpus`."""
    lines = [line.lower() for line in self.corpus.read_text(encoding="utf-8").splitlines() if line]
    return Path(train_small_model(self.directory / "spiece.model", lines, hard_vocab_limit=False))

  @shared
  def vocab_size(self) -> int:
    """The number of pieces of `vocabulary`."""
    import sentencepiece

    return int(sentencepiece.SentencePieceProcessor(model_file=str(self.vocabulary)).get_piece_size())

  @shared
  def shards(self) -> Path:
    """A directory with four shards of `corpus`, and their manifest."""
    return self.make_output("shards", self.data_prep_command)

  @shared
  def glue_dir(self) -> Path:
    """A GLUE directory with MRPC, STS-B and CoLA: 40 training examples and 10 of each other split."""
    return write_archive(self.directory / "glue", ["MRPC", "STS-B", "CoLA"], num_rows=10)

  @shared
  def squad_train_file(self) -> Path:
    """A SQuAD 2 file of 20 questions."""
    return Path(write_made_up_squad(self.directory / "train-v2.0.json", 20, version_2=True, seed=1))

  @shared
  def squad_dev_file(self) -> Path:
    """A SQuAD 2 file of 9 questions."""
    return Path(write_made_up_squad(self.directory / "dev-v2.0.json", 9, version_2=True, seed=2))

  @shared
  def race_dir(self) -> Path:
    """A RACE directory with 5 passages per split and level."""
    (self.directory / "race").mkdir()
    return Path(write_made_up_race(self.directory / "race", 5))

  @shared
  def pairs_to_predict(self) -> Path:
    """A tab-separated file of 200 pairs of texts."""
    path = self.directory / "pairs_to_predict.tsv"
    lines = [f"word {number} of a text\tanother text {number}\n" for number in range(200)]
    path.write_text("".join(lines), encoding="utf-8")
    return path

  # ---- commands --------------------------------------------------------------------------------------------

  @shared
  def model_flags(self) -> list[str]:
    """The flags of a very small model with the size of `vocabulary`."""
    return [*TINY_MODEL_FLAGS, f"--vocab_size={self.vocab_size}", "--max_position_embeddings=64"]

  def data_prep_command(self, output_dir: Path | str, *flags: str) -> list[str]:
    """data_prep.create_pretraining_data: four shards of `corpus`."""
    return [
      "-m",
      "data_prep.create_pretraining_data",
      f"--input_file={self.corpus}",
      f"--spm_model_file={self.vocabulary}",
      "--max_seq_length=32",
      "--num_shards=4",
      "--dupe_factor=1",
      "--num_processes=1",
      f"--output_dir={output_dir}",
      *flags,
    ]

  def train_vocab_command(self, output_dir: Path | str, *flags: str) -> list[str]:
    """data_prep.train_vocab: 400 pieces from `corpus`."""
    module = "data_prep.train_vocab"
    return ["-m", module, f"--input_file={self.corpus}", "--vocab_size=400", f"--output_dir={output_dir}", *flags]

  def pretraining_command(self, output_dir: Path | str, *flags: str) -> list[str]:
    """run_pretraining.py: 12 steps with a checkpoint every 2 and an evaluation at the end."""
    shards = sorted(self.shards.glob("*.tfrecord"))
    return [
      "run_pretraining.py",
      "--do_train",
      "--do_eval",
      f"--input_file={self.shards}/*.tfrecord",
      f"--eval_input_file={shards[0]}",
      *self.model_flags,
      "--hidden_dropout_prob=0.1",
      "--train_batch_size=8",
      "--eval_batch_size=64",
      "--max_eval_steps=4",
      "--num_train_steps=12",
      "--num_warmup_steps=2",
      "--log_every_steps=2",
      "--save_checkpoints_steps=2",
      f"--output_dir={output_dir}",
      *flags,
    ]

  def _finetuning_flags(self, max_seq_length: int) -> list[str]:
    """The flags of a run that finetunes for 4 steps and evaluates."""
    return [
      "--do_train",
      "--do_eval",
      "--from_scratch",
      f"--spm_model_file={self.vocabulary}",
      *self.model_flags,
      f"--max_seq_length={max_seq_length}",
      "--train_batch_size=8",
      "--eval_batch_size=16",
      "--num_train_steps=4",
      "--num_warmup_steps=1",
      "--log_every_steps=2",
      "--save_checkpoints_steps=2",
      "--learning_rate=0.002",
    ]

  def classifier_command(self, output_dir: Path | str, *flags: str) -> list[str]:
    """run_classifier.py: MRPC, 4 steps, an evaluation and predictions."""
    task = ["--task_name=mrpc", f"--data_dir={self.glue_dir}", "--do_predict", "--eval_every_steps=2"]
    return ["run_classifier.py", *self._finetuning_flags(32), *task, f"--output_dir={output_dir}", *flags]

  def squad_command(self, output_dir: Path | str, *flags: str) -> list[str]:
    """run_squad.py: version 2, 4 steps, an evaluation and predictions."""
    files = [
      f"--train_file={self.squad_train_file}",
      f"--eval_file={self.squad_dev_file}",
      f"--predict_file={self.squad_dev_file}",
    ]
    lengths = ["--max_query_length=12", "--doc_stride=16", "--version_2_with_negative", "--do_predict"]
    return ["run_squad.py", *self._finetuning_flags(48), *files, *lengths, f"--output_dir={output_dir}", *flags]

  def race_command(self, output_dir: Path | str, *flags: str) -> list[str]:
    """run_race.py: 4 steps, an evaluation and predictions."""
    task = [f"--data_dir={self.race_dir}", "--max_qa_length=24", "--eval_every_steps=0", "--do_predict"]
    return ["run_race.py", *self._finetuning_flags(64), *task, f"--output_dir={output_dir}", *flags]

  def export_command(self, run: Path | str, output_dir: Path | str, *flags: str) -> list[str]:
    return ["-m", "albert.export", f"--checkpoint={run}", f"--output_dir={output_dir}", *flags]

  def convert_command(self, weights: Path | str, output_dir: Path | str, *flags: str) -> list[str]:
    """albert.convert to Hugging Face's format."""
    target = [f"--output_dir={output_dir}", "--format=huggingface"]
    return ["-m", "albert.convert", f"--init_checkpoint={weights}", *target, *flags]

  # ---- finished runs ---------------------------------------------------------------------------------------

  @shared
  def pretraining_run(self) -> Path:
    """A finished run of `pretraining_command`."""
    return self.make_output("pretrained", self.pretraining_command)

  @shared
  def classifier_run(self) -> Path:
    """A finished run of `classifier_command`."""
    return self.make_output("classified", self.classifier_command)

  @shared
  def copied_classifier_run(self) -> Path:
    """A copy of `classifier_run`, in place of a run with another seed."""
    return Path(shutil.copytree(self.classifier_run, self.directory / "classified_again", dirs_exist_ok=True))

  @shared
  def exported_classifier(self) -> Path:
    """The exported model of `classifier_run`: the directory with saved_model.pb."""
    models = self.make_output("model_of_classifier", lambda output: self.export_command(self.classifier_run, output))
    return next(models.glob("*/*/saved_model.pb")).parent
