"""The commands that the part "disks" runs on a failing disk."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from pathlib import Path

import sentencepiece

from tests.torture.workplace import Workplace


@dataclasses.dataclass(frozen=True)
class Command:
  """A command that writes to a disk.

  Attributes:
    name: its name in the table.
    make_argv: returns the command, for the directory of the disk.
    num_cases: number of cases of each kind in the full campaign.
    num_failures: how often the disk fails in a case. The command is repeated after each failure, and gets further.
    replaced: files that the command replaces. They exist before the command starts.
    input_path: returns a file or directory that the command reads through albert.io.files. None if failing reads
      are not tested.
    prints: whether standard output goes to a file on the disk.
    has_workers: whether the command starts worker processes. System calls for writing are then not made to fail, since
      the pipes to the workers would fail, too.
  """

  name: str
  make_argv: Callable[[Path], list[str]]
  num_cases: int
  num_failures: int
  replaced: tuple[str, ...] = ()
  input_path: Callable[[], Path] | None = None
  prints: bool = False
  has_workers: bool = False


class CommandInputs:
  """The commands with inputs of their own. A method returns the arguments of a command for a disk's directory."""

  def __init__(self, workplace: Workplace):
    self.workplace = workplace
    self._lock = threading.RLock()

  @functools.cached_property
  def other_run(self) -> Path:
    """A run of the classifier with another seed, for an ensemble."""
    return self.workplace.make_output(
      "disks-classified", lambda output: self.workplace.classifier_command(output, "--seed=7")
    )

  @functools.cached_property
  def sentence_pairs(self) -> Path:
    """Lines for albert.predict, with a pair of sentences each."""
    path = self.workplace.directory / "disks-pairs.tsv"
    sentences = [line for line in self.workplace.corpus.read_text(encoding="utf-8").splitlines() if line]
    pairs = zip(sentences[::2], sentences[1::2], strict=False)
    path.write_text("".join(f"{text_a}\t{text_b}\n" for text_a, text_b in pairs), encoding="utf-8")
    return path

  def ensemble(self, disk: Path) -> list[str]:
    with self._lock:
      runs = f"{self.workplace.classifier_run},{self.other_run}"
    return ["-m", "albert.ensemble", f"--inputs={runs}", f"--output_dir={disk}/both"]

  def report(self, disk: Path) -> list[str]:
    return ["-m", "albert.report", str(self.workplace.classifier_run), f"--output_file={disk}/report.html"]

  def question_texts(self, disk: Path) -> list[str]:
    squad, race = self.workplace.squad_train_file, self.workplace.race_dir / "dev"
    module = "data_prep.question_texts"
    return ["-m", module, f"--squad_file={squad}", f"--race_file={race}", f"--output_file={disk}/text.txt"]

  def sample_corpus(self, disk: Path) -> list[str]:
    package = Path(sentencepiece.__file__).parents[1] / "absl"
    module = "data_prep.sample_corpus"
    return ["-m", module, f"--packages_dir={package}", "--num_processes=1", f"--output_dir={disk}"]

  def predict(self, disk: Path) -> list[str]:
    del disk
    model = self.workplace.exported_classifier
    with self._lock:
      sentence_pairs = self.sentence_pairs
    return ["-m", "albert.predict", f"--model={model}", f"--input_file={sentence_pairs}", "--format=tsv"]

  def with_cache(self, command: Callable[..., list[str]]) -> Callable[[Path], list[str]]:
    """Puts the output directory and the feature cache of a command on the disk."""
    return lambda disk: command(disk / "run", f"--cache_dir={disk}/cache")

  def pretraining(self, disk: Path) -> list[str]:
    return self.workplace.pretraining_command(disk / "run", "--num_train_steps=6", "--max_eval_steps=2")


def all_commands(workplace: Workplace) -> list[Command]:
  """Returns all commands except albert.predict, whose output is standard output."""
  inputs = CommandInputs(workplace)
  return [
    Command("pretraining", inputs.pretraining, num_cases=1, num_failures=3, input_path=lambda: workplace.shards),
    Command(
      "classifier",
      inputs.with_cache(workplace.classifier_command),
      num_cases=1,
      num_failures=3,
      input_path=lambda: workplace.glue_dir,
    ),
    Command("SQuAD", inputs.with_cache(workplace.squad_command), num_cases=1, num_failures=3),
    Command("RACE", inputs.with_cache(workplace.race_command), num_cases=1, num_failures=3),
    Command(
      "export",
      lambda disk: workplace.export_command(workplace.classifier_run, disk),
      num_cases=1,
      num_failures=2,
      input_path=lambda: workplace.classifier_run,
    ),
    Command(
      "conversion",
      lambda disk: workplace.convert_command(workplace.pretraining_run, disk / "hf"),
      num_cases=5,
      num_failures=1,
      input_path=lambda: workplace.pretraining_run,
    ),
    Command(
      "conversion to TF1",
      lambda disk: workplace.convert_command(workplace.pretraining_run, disk / "tf1", "--format=tf1"),
      num_cases=5,
      num_failures=1,
    ),
    Command("ensemble", inputs.ensemble, num_cases=5, num_failures=1, input_path=lambda: workplace.classifier_run),
    Command(
      "report",
      inputs.report,
      num_cases=5,
      num_failures=1,
      replaced=("report.html",),
      input_path=lambda: workplace.classifier_run,
    ),
    Command(
      "data preparation",
      lambda disk: workplace.data_prep_command(disk / "shards"),
      num_cases=5,
      num_failures=1,
      input_path=lambda: workplace.corpus,
    ),
    Command(
      "vocabulary",
      workplace.train_vocab_command,
      num_cases=5,
      num_failures=1,
      replaced=("spiece.model", "spiece.vocab"),
      input_path=lambda: workplace.corpus,
    ),
    Command(
      "sample of a corpus",
      inputs.sample_corpus,
      num_cases=5,
      num_failures=1,
      replaced=("train.txt", "heldout.txt"),
      has_workers=True,
    ),
    Command(
      "text of questions",
      inputs.question_texts,
      num_cases=5,
      num_failures=1,
      replaced=("text.txt",),
      input_path=lambda: workplace.race_dir,
    ),
  ]
