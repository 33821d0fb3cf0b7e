"""Data preparation: the shards do not depend on the number of processes, and the manifest describes them."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from albert.data import schema
from albert.data.manifest import Manifest, file_sha256
from albert.errors import UserError
from albert.io import records
from albert.tokenization.normalization import normalize_text
from albert.tokenization.vocabulary import CLS_ID, SEP_ID, UNK_ID
from data_prep import block_files, blocks, create_pretraining_data, shards
from data_prep.create_pretraining_data import prepare
from data_prep.examples.settings import PreparationSettings
from tests.conftest import english_like_documents
from tests.data_prep.runners.jobs import contents, make_job
from tests.thorough import thorough_except

pytestmark = pytest.mark.usefixtures("small_units")


@pytest.mark.parametrize("prediction", ["sop", pytest.param("nsp", marks=pytest.mark.thorough)])
def test_output_does_not_depend_on_processes(
  tmp_path: Path, small_files: list[str], spm_model: str, prediction: str
) -> None:
  settings = PreparationSettings(max_seq_length=32, dupe_factor=2, sentence_prediction=prediction)
  outputs = []
  for num_processes in (1, 2, 7):
    directory = tmp_path / str(num_processes)
    prepare(make_job(small_files, spm_model, directory, settings=settings, num_processes=num_processes))
    outputs.append(contents(directory))
  assert all(output == outputs[0] for output in outputs)
  assert sorted(outputs[0]) == ["manifest.json", *(f"pretraining-0000{i}-of-00003.tfrecord" for i in range(3))]


@pytest.mark.parametrize("num_units", [3, 100])
def test_output_does_not_depend_on_blocks_runs_and_steps(
  tmp_path: Path,
  small_files: list[str],
  spm_model: str,
  monkeypatch: pytest.MonkeyPatch,
  uninterrupted_output: dict[str, bytes],
  num_units: int,
) -> None:
  """Blocks of several units with several sorted runs, and shards in several steps, as for a large corpus."""
  monkeypatch.setattr(blocks, "units_per_block", lambda text_bytes, dupe_factor: num_units)
  monkeypatch.setattr(block_files, "MAX_RUN_BYTES", 20_000)
  monkeypatch.setattr(shards, "_MIN_STEP_BYTES", 5000)
  prepare(make_job(small_files, spm_model, tmp_path))
  assert contents(tmp_path) == uninterrupted_output


@pytest.mark.parametrize(
  ("text_bytes", "dupe_factor", "num_units"),
  [
    (0, 1, 1),
    (500 << 20, 1, 1),  # 250 units
    (1 << 30, 1, 2),  # a 256th of 512 units
    (160 << 30, 1, 85),  # 128 MB of instances, of which 2 MiB of text give about 1.5 MB
    (160 << 30, 40, 2),
    (160 << 30, 1000, 1),
  ],
)
def test_a_block_is_a_256th_of_the_text_and_fits_into_memory(text_bytes: int, dupe_factor: int, num_units: int) -> None:
  assert blocks.units_per_block(text_bytes, dupe_factor) == num_units


def test_gzip_text_and_gzip_shards_hold_the_same_examples(
  tmp_path: Path, small_files: list[str], spm_model: str
) -> None:
  gzip_files = []
  for path in small_files:
    gzip_file = tmp_path / (Path(path).name + ".gz")
    gzip_file.write_bytes(gzip.compress(Path(path).read_bytes()))
    gzip_files.append(str(gzip_file))
  plain_manifest = prepare(make_job(small_files, spm_model, tmp_path / "plain"))
  gzip_manifest = prepare(make_job(gzip_files, spm_model, tmp_path / "gzip", compress=True, num_processes=2))
  for plain_shard, gzip_shard in zip(plain_manifest.shards, gzip_manifest.shards, strict=True):
    assert gzip_shard.file == plain_shard.file + ".gz"
    plain_records = list(records.read_records(str(tmp_path / "plain" / plain_shard.file)))
    assert list(records.read_records(str(tmp_path / "gzip" / gzip_shard.file))) == plain_records


def assert_valid_example(example: dict[str, np.ndarray], *, num_segments: int) -> None:
  """Checks an example of 40 tokens, at most 5 of which are masked: its special tokens, masks and segments."""
  length, num_masked = int(example["input_mask"].sum()), int(example["masked_lm_weights"].sum())
  assert num_masked <= min(5, max(1, round(0.15 * length)))
  positions = example["masked_lm_positions"][:num_masked]
  unmasked_ids = example["input_ids"].copy()
  unmasked_ids[positions] = example["masked_lm_ids"][:num_masked]
  (separators,) = np.nonzero(unmasked_ids == SEP_ID)
  assert unmasked_ids[0] == CLS_ID
  assert separators.size == num_segments
  assert separators[-1] == length - 1
  assert not np.isin(positions, [0, *separators]).any()
  expected_segments = (np.arange(40) > separators[0]) & (np.arange(40) < length)
  np.testing.assert_array_equal(example["segment_ids"], expected_segments)


def test_the_case_and_the_accents_are_those_of_the_vocabulary(tmp_path: Path, corpus_file: str, spm_model: str) -> None:
  vocabulary = tmp_path / "vocab" / "spiece.model"
  vocabulary.parent.mkdir()
  shutil.copyfile(spm_model, vocabulary)
  (vocabulary.parent / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
  settings = PreparationSettings(max_seq_length=32, dupe_factor=1)
  manifest = prepare(make_job(corpus_file, str(vocabulary), tmp_path / "out", settings=settings))
  assert (manifest.settings["do_lower_case"], manifest.settings["keep_accents"]) == (False, True)
  given = PreparationSettings(max_seq_length=32, dupe_factor=1, do_lower_case=False, keep_accents=True)
  assert prepare(make_job(corpus_file, spm_model, tmp_path / "given", settings=given)).shards == manifest.shards
  contradiction = dataclasses.replace(settings, do_lower_case=True)
  with pytest.raises(UserError, match="do_lower_case=true is given, but the vocabulary was made with"):
    prepare(make_job(corpus_file, str(vocabulary), tmp_path / "other", settings=contradiction))


@pytest.mark.parametrize("prediction", thorough_except(["nsp"], ["sop", "nsp", "none"]))
def test_manifest_agrees_with_the_shards(tmp_path: Path, corpus_file: str, spm_model: str, prediction: str) -> None:
  settings = PreparationSettings(
    max_seq_length=40, max_predictions_per_seq=5, sentence_prediction=prediction, dupe_factor=2
  )
  manifest = prepare(make_job(corpus_file, spm_model, tmp_path / "out", settings=settings))
  assert Manifest.load(str(tmp_path / "out")) == manifest
  label_counts = {"0": 0, "1": 0}
  for shard in manifest.shards:
    path = tmp_path / "out" / shard.file
    assert (shard.bytes, shard.sha256) == (path.stat().st_size, file_sha256(str(path)))
    examples = [records.decode_example(record) for record in records.read_records(str(path))]
    assert len(examples) == shard.examples
    for feature in schema.pretraining_features(40, 5):
      assert {example[feature.name].dtype for example in examples} == {np.dtype(feature.dtype)}
      assert {example[feature.name].shape for example in examples} == {(feature.length,)}
    for example in examples:
      label_counts[str(example["next_sentence_labels"][0])] += 1
      assert_valid_example(example, num_segments=1 if prediction == "none" else 2)
  assert manifest.label_counts == label_counts
  assert manifest.num_examples == sum(label_counts.values())
  assert (manifest.num_documents, manifest.num_dropped_documents) == (300, 0)
  if prediction == "none":
    assert label_counts["1"] == 0
  else:
    share = label_counts["1"] / manifest.num_examples
    standard_deviation = 0.5 / np.sqrt(manifest.num_examples)
    assert share == pytest.approx(0.5, abs=4 * standard_deviation)


@pytest.mark.parametrize("num_documents_with_unknown", [3, 0])
def test_unknown_tokens_are_counted_and_give_a_warning(
  tmp_path: Path, spm_model: str, capsys: pytest.CaptureFixture[str], num_documents_with_unknown: int
) -> None:
  documents = english_like_documents(30, seed=2)
  for document in documents[:num_documents_with_unknown]:
    document.extend(["the prize is 漢字 and ж, or §5", "漢"] * 10)
  text_file = tmp_path / "text.txt"
  text_file.write_text("\n\n".join("\n".join(document) for document in documents))
  manifest = prepare(make_job(str(text_file), spm_model, tmp_path / "out"))
  # SentencePiece itself gives the expected number. Each line counts once, whatever dupe_factor is.
  processor = sentencepiece.SentencePieceProcessor(model_file=spm_model)
  ids_of_lines = [processor.encode(normalize_text(line)) for document in documents for line in document]
  num_unknown = sum(ids.count(UNK_ID) for ids in ids_of_lines)
  assert (num_unknown > 0) == (num_documents_with_unknown > 0)
  assert manifest.num_unknown_tokens == num_unknown
  assert Manifest.load(str(tmp_path / "out")) == manifest
  capsys.readouterr()
  create_pretraining_data._print_summary(manifest, "shards")
  out, err = capsys.readouterr()
  share = num_unknown / manifest.num_tokens
  assert f"({manifest.label_counts['0']} in order, {manifest.label_counts['1']} swapped or random)" in out
  assert f"<unk>: {num_unknown} of the tokens ({share:.3%})" in out
  if num_documents_with_unknown:
    assert err.startswith(f"warning: shards: {share:.1%} of the tokens are <unk>")
    assert "train a vocabulary" in err
    assert err.count("\n") == 1
  else:
    assert err == ""


def test_examples_are_shuffled_across_the_corpus(tmp_path: Path, spm_model: str) -> None:
  """The corpus begins with short documents and ends with long ones. Every quarter of every shard has both kinds."""
  documents = ["nobody watched the river"] * 300 + ["the captain sold the key to the library before breakfast"] * 300
  text_file = tmp_path / "text.txt"
  text_file.write_text("\n\n".join(documents))
  shard_hashes = []  # of each seed
  for seed in (1, 2):
    settings = PreparationSettings(max_seq_length=32, random_seed=seed, dupe_factor=2)
    manifest = prepare(make_job(str(text_file), spm_model, tmp_path / str(seed), settings=settings))
    shard_hashes.append([shard.sha256 for shard in manifest.shards])
    assert [shard.examples for shard in manifest.shards] == [400, 400, 400]  # 600 documents, each used twice
    for shard in manifest.shards:
      path = str(tmp_path / str(seed) / shard.file)
      lengths = np.array([records.decode_example(record)["input_mask"].sum() for record in records.read_records(path)])
      is_long = lengths > (lengths.min() + lengths.max()) / 2
      for quarter in np.split(is_long, 4):
        assert quarter.mean() == pytest.approx(0.5, abs=0.2)  # 4 standard deviations of 100 examples
  assert set(shard_hashes[0]).isdisjoint(shard_hashes[1])
