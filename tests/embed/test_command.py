"""`python -m albert.embed` as a process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import albert
from tests.golden.make_tiny_albert import random_weights
from tests.small_downloads import small_config, write_google
from tests.torture.workplace import Workplace

TEXTS = [
  "nobody",
  "The captain sold the garden behind the house.",
  "",
  *(f"letter {number} from paris" for number in range(12)),
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> str:
  """A directory of small pretrained weights, with their vocabulary."""
  config = small_config(spm_model)
  return write_google(tmp_path_factory.mktemp("weights") / "x", config, random_weights(config, seed=3), spm_model)


def test_the_embeddings_are_those_of_albert_encode_in_the_order_of_the_texts(
  weights: str, tmp_path: Path, commands: Workplace
) -> None:
  (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
  command = ["-m", "albert.embed", f"--checkpoint={weights}", "--batch_size=4"]
  lines = commands.run([*command, f"--input_file={tmp_path}/texts.txt", f"--output_file={tmp_path}/v.npy"])
  assert lines.code == 0, lines.stderr
  assert "wrote" in lines.stdout
  assert f"{len(TEXTS)} embeddings of 24 numbers" in lines.stdout
  assert f"warning: 1 text of {len(TEXTS)} without a character" in lines.stderr
  np.testing.assert_allclose(np.load(tmp_path / "v.npy"), albert.encode(TEXTS, weights, batch_size=4), atol=2e-6)


@pytest.mark.thorough
def test_the_nearest_texts_of_queries_are_written(weights: str, tmp_path: Path, commands: Workplace) -> None:
  pd.DataFrame({"key": [f"k{i}" for i in range(len(TEXTS))], "text": TEXTS}).to_csv(tmp_path / "t.csv", index=False)
  (tmp_path / "q.txt").write_text("letter 3 from paris\nnobody\n")
  command = ["-m", "albert.embed", f"--checkpoint={weights}", "--input_file=t.csv", "--text_column=text"]
  flags = ["--id_column=key", "--queries=q.txt", "--top_k=2", "--output_file=n.jsonl"]
  finished = commands.run([*command, *flags], cwd=tmp_path)
  assert finished.code == 0, finished.stderr
  found = pd.read_json(tmp_path / "n.jsonl", lines=True)
  assert list(found["query"]) == [1, 1, 2, 2]
  assert list(found["id"][::2]) == ["k6", "k0"]
  np.testing.assert_allclose(found["score"][::2], 1.0, atol=2e-6)


@pytest.mark.thorough
def test_a_table_has_its_own_ids_and_pooling_and_length_are_flags(
  weights: str, tmp_path: Path, commands: Workplace
) -> None:
  pd.DataFrame({"key": [f"k{i}" for i in range(len(TEXTS))], "text": TEXTS}).to_csv(tmp_path / "t.csv", index=False)
  command = ["-m", "albert.embed", f"--checkpoint={weights}", "--batch_size=4"]
  flags = [f"--input_file={tmp_path}/t.csv", "--text_column=text", "--id_column=key", "--pooling=pooled"]
  table = commands.run([*command, *flags, "--max_seq_length=6", f"--output_file={tmp_path}/v.parquet"])
  assert table.code == 0, table.stderr
  frame = pd.read_parquet(tmp_path / "v.parquet").set_index("id")
  expected = albert.encode(TEXTS, weights, pooling="pooled", max_length=6, batch_size=4)
  found = np.stack([frame.loc[f"k{i}", "embedding"] for i in range(len(TEXTS))])
  np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize(
  ("flags", "error"),
  [
    (["--output_file=v.txt"], "--output_file=v.txt: must end in .npy or .parquet"),
    (["--output_file=v.npy", "--queries=x.txt"], "--output_file=v.npy: must end in .jsonl"),
    (["--queries=x.tsv", "--output_file=n.jsonl"], "--queries=x.tsv: is a table: give --text_column"),
    (["--max_seq_length=49"], "--max_seq_length=49: the model has only 48 positions"),
    (["--input_file=absent.txt"], "--input_file=absent.txt: no such file"),
    (["--queries=absent.txt", "--output_file=n.jsonl"], "--queries=absent.txt: no such file"),
    (["--checkpoint=absent"], "--checkpoint=absent: no checkpoint there"),
    (["--checkpoint="], "--checkpoint is missing"),
    (["--text_column=body", "--input_file=x.tsv"], "no column 'body'; there are: 'text'"),
  ],
)
def test_bad_flags_are_refused_in_one_line_before_tensorflow_is_imported(
  weights: str, tmp_path: Path, commands: Workplace, flags: list[str], error: str
) -> None:
  (tmp_path / "x.tsv").write_text("text\none\n")
  (tmp_path / "x.txt").write_text("one\n")
  command = ["-m", "albert.embed", f"--checkpoint={weights}", "--input_file=x.txt", "--output_file=v.npy", *flags]
  finished = commands.run(command, cwd=tmp_path)
  assert finished.code == 2
  assert [line for line in finished.stderr.splitlines() if not line.startswith("warning")] == [finished.error]
  assert error in finished.error
  assert sorted(os.listdir(tmp_path)) == ["x.tsv", "x.txt"]


def test_weights_without_config_or_vocabulary_are_refused(weights: str, tmp_path: Path, commands: Workplace) -> None:
  (tmp_path / "x.txt").write_text("one\n")
  for name in os.listdir(weights):
    if not name.endswith(".model"):
      os.link(Path(weights, name), tmp_path / name)
  command = ["-m", "albert.embed", f"--checkpoint={tmp_path}", "--input_file=x.txt", "--output_file=v.npy"]
  error = commands.run(command, cwd=tmp_path).error
  assert "has no spiece.model or " in error
  assert error.endswith(" beside it: put the vocabulary there")
  (tmp_path / "albert_config.json").unlink()
  assert "has no albert_config.json or config.json beside it" in commands.run(command, cwd=tmp_path).error
