"""The commands of docs/wikipedia_and_books.md run as they are printed there, on small files of the same forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import english_like_documents
from tests.data_prep.readers import wikipedia_dump
from tests.docs.blocks import ROOT, blocks
from tests.docs.smaller_commands import run_block, write_python
from tests.tasks.glue.archive import write_archive

PRETRAINING_FLAGS = (
  "--model=albert_tiny --vocab_size=200 --train_batch_size=4 --gradient_accumulation_steps=2 --num_train_steps=10 "
  "--num_warmup_steps=1 --save_checkpoints_steps=5 --eval_every_steps=5 --max_eval_steps=1"
)
# Script or module -> flags that are added to its commands, to make them small.
ADDED_FLAGS = {
  "data_prep.split_text": "--num_processes=2",
  "data_prep.train_vocab": "--vocab_size=200",
  "data_prep.create_pretraining_data": "--num_shards=2 --num_processes=2",
  "run_pretraining.py": PRETRAINING_FLAGS,
  "run_classifier.py": "--num_train_steps=2 --num_warmup_steps=1 --train_batch_size=4 --max_seq_length=32",
}


def _write_dump_and_book(wiki: Path, dump_name: str, books: Path, num_documents: int, seed: int) -> None:
  """Writes a folder with a dump of Wikipedia, and a folder with a book, of as many articles as chapters."""
  for folder in (wiki, books):
    folder.mkdir()
  articles = english_like_documents(num_documents, seed)
  (wiki / dump_name).write_bytes(
    wikipedia_dump.make_multistream_dump([article for article in articles if len(article) > 3])
  )
  chapters = english_like_documents(num_documents, seed + 1)
  (books / "a book.txt").write_text("\n\n".join("\n".join(chapter) for chapter in chapters), encoding="utf-8")


@pytest.mark.slow
def test_the_commands_of_the_guide_run_as_printed(tmp_path: Path) -> None:
  for script in ROOT.glob("run_*.py"):
    (tmp_path / script.name).symlink_to(script)
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  write_archive(tmp_path / "glue_data", ["MRPC"], num_rows=10)
  dump_name = "enwiki-20261101-pages-articles-multistream"
  _write_dump_and_book(tmp_path / "wiki", f"{dump_name}1.xml-p1p41242.bz2", tmp_path / "books", 40, seed=1)
  _write_dump_and_book(tmp_path / "wiki_eval", f"{dump_name}27.xml-p9p10.bz2", tmp_path / "books_eval", 10, seed=5)
  write_python(tmp_path / "bin" / "python", ADDED_FLAGS)
  guide = ROOT / "docs" / "wikipedia_and_books.md"
  texts = [block.text for block in blocks(guide) if block.language == "sh" and "pip install" not in block.text]
  assert len(texts) == 6  # all shell blocks of the guide but the one that installs packages
  for text in texts:
    run_block(text, tmp_path, tmp_path / "bin")
  stages = json.loads((tmp_path / "pretrained" / "config.json").read_text())["stages"]
  assert [stage["max_seq_length"] for stage in stages] == [128, 512]
  assert (tmp_path / "pretrained" / "curves.png").exists()
  results = json.loads((tmp_path / "pretrained" / "eval_results.json").read_text())
  assert {"masked_lm_accuracy", "sentence_order_accuracy"} <= set(results)
  assert "accuracy" in json.loads((tmp_path / "mrpc" / "eval_results.json").read_text())
