r"""Writes the paragraphs of SQuAD and the passages of RACE as plain text, to evaluate pretraining on it.

ALBERT's intrinsic evaluation uses the development sets of SQuAD and RACE (ALBERT, section 4.2.1):

  python -m data_prep.question_texts --squad_file=dev-v2.0.json --race_file=RACE/dev \
    --output_file=heldout.txt
  python -m data_prep.create_pretraining_data --input_file=heldout.txt ...

A document is an article of SQuAD with all its paragraphs, or a passage of RACE. It has one sentence on each line and
ends with a blank line.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

from collections.abc import Iterable, Iterator

from absl import flags

from albert.config import command_flags
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted
from albert.tasks.race import files as race_files
from albert.tasks.squad import files as squad_files
from data_prep.sentences import SentenceSplitter

FLAGS = flags.FLAGS


def read_squad_articles(paths: list[str]) -> list[list[str]]:
  """Returns the paragraphs of each article of SQuAD, in order and without repetitions.

  A paragraph without a title is an article of its own.
  """
  articles: dict[str, dict[str, None]] = {}  # title -> paragraphs; the keys of a dict are an ordered set
  for question in squad_files.read_questions(paths, version_2=True, with_answers=False):
    paragraph = question.paragraph
    articles.setdefault(paragraph.title or paragraph.context, {})[paragraph.context] = None
  return [list(paragraphs) for paragraphs in articles.values()]


def read_race_passages(path: str) -> list[list[str]]:
  """Returns the paragraphs of each passage in a directory such as RACE/dev, or in a glob of files of JSON lines."""
  flag = "--race_file"
  paths = race_files.find_passages(path, flag) if files.is_dir(path) else files.expand_globs(path, flag=flag)
  questions = race_files.read_questions(paths, with_answers=False)
  passages = dict.fromkeys(question.article for question in questions)  # without repetitions
  return [passage.split("\n") for passage in passages]


def format_documents(articles: Iterable[list[str]]) -> Iterator[str]:
  """Yields the text of each article that is not empty: one sentence on each line, and a blank line at the end."""
  splitter = SentenceSplitter()
  for paragraphs in articles:
    lines = [" ".join(sentence.split()) for paragraph in paragraphs for sentence in splitter.split(paragraph)]
    if lines:
      yield "\n".join(lines) + "\n\n"


def define_flags() -> None:
  command_flags.define("str", "squad_file", "", "JSON files in the format of SQuAD v1.1 or v2.0: comma-separated globs")
  command_flags.define(
    "str", "race_file", "", "directory such as RACE/dev, or comma-separated globs of files of JSON lines"
  )
  command_flags.define("str", "output_file", None, "text file to write", required=True)


def main() -> None:
  articles: list[list[str]] = []
  if FLAGS.squad_file:
    articles += read_squad_articles(files.expand_globs(FLAGS.squad_file, flag="--squad_file"))
  if FLAGS.race_file:
    articles += read_race_passages(FLAGS.race_file)
  if not articles:
    raise UserError("no input: give --squad_file, --race_file, or both")
  texts = list(format_documents(articles))
  files.write_atomically(FLAGS.output_file, "".join(texts))
  num_sentences = sum(text.count("\n") - 1 for text in texts)
  counts = f"{counted(len(texts), 'document', ',')}, {counted(num_sentences, 'sentence', ',')}"
  log(f"{FLAGS.output_file}: {counts}")


if __name__ == "__main__":
  startup.run_command_of(__name__)
