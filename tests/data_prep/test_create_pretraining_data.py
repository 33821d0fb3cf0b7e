"""Data preparation: the shards do not depend on the number of processes, and the manifest describes them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from albert.data import schema
from albert.data.manifest import Manifest, file_sha256
from albert.io import records
from albert.tokenization.normalization import normalize_text
from data_prep import create_pretraining_data
from data_prep.create_pretraining_data import prepare
from data_prep.settings import PreparationSettings
from tests.conftest import english_like_documents
from tests.data_prep.runners.jobs import contents, make_job
from tests.thorough import thorough_except

pytestmark = pytest.mark.usefixtures("small_units")


@pytest.mark.parametrize(
  ("prediction", "input_format", "numbers_of_processes"),
  [
    ("sop", "segments", (1, 2, 7)),
    pytest.param("nsp", "segments", (1, 3), marks=pytest.mark.thorough),
    pytest.param("none", "segments", (1, 3), marks=pytest.mark.thorough),
    pytest.param("nsp", "sentence_pair", (1, 3), marks=pytest.mark.thorough),
    pytest.param("none", "full_sentences", (1, 3), marks=pytest.mark.thorough),
  ],
)
def test_output_does_not_depend_on_processes(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  prediction: str,
  input_format: str,
  numbers_of_processes: tuple[int, ...],
) -> None:
  settings = PreparationSettings(
    max_seq_length=32, dupe_factor=2, sentence_prediction=prediction, input_format=input_format
  )
  outputs = []
  for num_processes in numbers_of_processes:
    directory = tmp_path / str(num_processes)
    prepare(make_job(small_files, spm_model, directory, settings=settings, num_processes=num_processes))
    outputs.append(contents(directory))
  assert all(output == outputs[0] for output in outputs)
  assert sorted(outputs[0]) == ["manifest.json", *(f"pretraining-0000{i}-of-00003.tfrecord" for i in range(3))]


def test_gzip_text_and_gzip_shards_hold_the_same_examples(
  tmp_path: Path, small_files: list[str], spm_model: str
) -> None:
  packed = []
  for path in small_files:
    packed.append(str(tmp_path / (Path(path).name + ".gz")))
    Path(packed[-1]).write_bytes(gzip.compress(Path(path).read_bytes()))
  plain = prepare(make_job(small_files, spm_model, tmp_path / "plain"))
  zipped = prepare(make_job(packed, spm_model, tmp_path / "zipped", compress=True, num_processes=2))
  for one, other in zip(plain.shards, zipped.shards, strict=True):
    assert other.file == one.file + ".gz"
    examples = [
      list(records.read_records(str(tmp_path / name / shard.file)))
      for name, shard in (("plain", one), ("zipped", other))
    ]
    assert examples[0] == examples[1]


@pytest.mark.parametrize("prediction", thorough_except(["nsp"], ["sop", "nsp", "none"]))
def test_manifest_agrees_with_the_shards(tmp_path: Path, corpus_file: str, spm_model: str, prediction: str) -> None:
  settings = PreparationSettings(
    max_seq_length=40, max_predictions_per_seq=5, sentence_prediction=prediction, dupe_factor=2
  )
  manifest = prepare(make_job(corpus_file, spm_model, tmp_path / "out", settings=settings))
  assert Manifest.load(str(tmp_path / "out")) == manifest
  labels = {"0": 0, "1": 0}
  for shard in manifest.shards:
    path = tmp_path / "out" / shard.file
    assert (shard.bytes, shard.sha256) == (path.stat().st_size, file_sha256(str(path)))
    examples = [records.decode_example(record) for record in records.read_records(str(path))]
    assert len(examples) == shard.examples
    for feature in schema.pretraining_features(40, 5):
      assert {example[feature.name].dtype for example in examples} == {np.dtype(feature.dtype)}
      assert {example[feature.name].shape for example in examples} == {(feature.length,)}
    for example in examples:
      labels[str(example["next_sentence_labels"][0])] += 1
      length, count = int(example["input_mask"].sum()), int(example["masked_lm_weights"].sum())
      assert count <= min(5, max(1, round(0.15 * length)))
      ids = example["input_ids"]
      positions = example["masked_lm_positions"][:count]
      ids[positions] = example["masked_lm_ids"][:count]
      (separators,) = np.nonzero(ids == 3)
      assert ids[0] == 2
      assert separators.size == (1 if prediction == "none" else 2)
      assert separators[-1] == length - 1
      assert not np.isin(positions, [0, *separators]).any()
      expected_segments = (np.arange(40) > separators[0]) & (np.arange(40) < length)
      np.testing.assert_array_equal(example["segment_ids"], expected_segments)
  assert manifest.label_counts == labels
  assert manifest.num_examples == sum(labels.values())
  assert (manifest.num_documents, manifest.num_dropped_documents) == (300, 0)
  if prediction == "none":
    assert labels["1"] == 0
  else:
    share = labels["1"] / manifest.num_examples
    assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(manifest.num_examples))


@pytest.mark.parametrize("documents_with_unknown", [3, 0])
def test_unknown_tokens_are_counted_and_give_a_warning(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str], documents_with_unknown: int
) -> None:
  documents = english_like_documents(30, seed=2)
  for document in documents[:documents_with_unknown]:
    document.extend(["the prize is 漢字 and ж, or §5", "漢"] * 10)
  text = tmp_path / "text.txt"
  text.write_text("\n\n".join("\n".join(document) for document in documents))
  manifest = prepare(make_job(str(text), spm_model, tmp_path / "out"))
  # The expected number is computed by SentencePiece. It counts each line once, whatever dupe_factor is.
  processor = sentencepiece.SentencePieceProcessor(model_file=spm_model)
  lines = [processor.encode(normalize_text(line)) for document in documents for line in document]
  num_unknown = sum(ids.count(1) for ids in lines)
  assert (num_unknown > 0) == bool(documents_with_unknown)
  assert manifest.num_unknown_tokens == num_unknown
  assert Manifest.load(str(tmp_path / "out")) == manifest
  capsys.readouterr()
  create_pretraining_data._print_summary(manifest, "shards")
  out, err = capsys.readouterr()
  share = num_unknown / manifest.num_tokens
  assert f"<unk>: {num_unknown} of the tokens ({share:.3%})" in out
  if documents_with_unknown:
    assert err.startswith(f"warning: shards: {share:.1%} of the tokens are <unk>")
    assert "train a vocabulary" in err
    assert err.count("\n") == 1
  else:
    assert err == ""


def test_examples_are_shuffled_across_the_corpus(tmp_path: Path, spm_model: str) -> None:
  """The corpus begins with short documents and ends with long ones. Every part of every shard has both."""
  documents = ["nobody watched the river"] * 300 + ["the captain sold the key to the library before breakfast"] * 300
  text = tmp_path / "text.txt"
  text.write_text("\n\n".join(documents))
  hashes = []
  for seed in (1, 2):
    settings = PreparationSettings(max_seq_length=32, random_seed=seed, dupe_factor=2)
    manifest = prepare(make_job(str(text), spm_model, tmp_path / str(seed), settings=settings))
    hashes.append([shard.sha256 for shard in manifest.shards])
    assert [shard.examples for shard in manifest.shards] == [400, 400, 400]
    for shard in manifest.shards:
      path = str(tmp_path / str(seed) / shard.file)
      lengths = np.array([records.decode_example(r)["input_mask"].sum() for r in records.read_records(path)])
      is_long = lengths > (lengths.min() + lengths.max()) / 2
      for quarter in np.split(is_long, 4):
        assert quarter.mean() == pytest.approx(0.5, abs=0.2)  # 4 standard deviations
  assert not set(hashes[0]) & set(hashes[1])
