"""Tests of the experiments in configs/: they hold the paper's numbers, and every scale can build their models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from albert.errors import UserError
from albert.experiments import catalog, tables
from albert.experiments.catalog import SCALES, check_variants, read_scale
from albert.settings import costs

EXPERIMENT_NAMES = catalog.names()
VOCAB_SIZE = 30000


@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_the_papers_averages_are_the_means_of_its_columns(name: str):
  """The paper averages F1 and exact match of SQuAD first, then all tasks (table 2)."""
  for variant in catalog.load(name).variants:
    paper = variant.paper
    if {"average", "squad_v1_f1", "squad_v2_f1", "mnli", "sst2", "race"} <= set(paper):
      squad = [(paper[f"{version}_f1"] + paper[f"{version}_exact"]) / 2 for version in ("squad_v1", "squad_v2")]
      scores = [*squad, paper["mnli"], paper["sst2"], paper["race"]]
      assert sum(scores) / 5 == pytest.approx(paper["average"], abs=0.11), variant.name
      without_average = {score: value for score, value in paper.items() if score != "average"}
      row = tables.add_average({"scores": {**without_average, "cola": 0.0}})
      assert row["scores"]["average"] == pytest.approx(sum(scores) / 5)
      assert "average" not in tables.add_average({"scores": {"sst2": 90.0, "mnli": 80.0}})["scores"]


@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_numbers_of_parameters_are_the_papers(name: str):
  for variant in catalog.load(name).variants:
    if "parameters" in variant.paper:
      num_parameters = costs.num_model_parameters(read_scale("paper").model(variant, VOCAB_SIZE))
      # The paper rounds, and for models like xxlarge it gives 5 to 10% more than its own code has.
      assert num_parameters == pytest.approx(variant.paper["parameters"], rel=0.12), variant.name


@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_every_model_has_dropout_except_where_the_paper_removes_it(name: str):
  """The paper trains with dropout 0.1. Only one row of its table on dropout (table 8) is without."""
  for variant in catalog.load(name).variants:
    model = read_scale("paper").model(variant, VOCAB_SIZE)
    expected = 0.0 if variant.name == "without dropout" else 0.1
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (expected, expected), variant.name


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_every_scale_keeps_the_differences_between_variants(name: str, scale: str):
  """Two variants have the same reduced model only if they have the same model in the paper."""
  experiment = catalog.load(name, reduced=read_scale(scale).is_reduced)
  models = [read_scale(scale).model(variant, VOCAB_SIZE) for variant in experiment.variants]
  paper_models = [read_scale("paper").model(variant, VOCAB_SIZE) for variant in experiment.variants]
  assert all(model.hidden_size % model.num_attention_heads == 0 for model in models)
  if scale in ("small", "medium"):
    assert len(set(models)) == len(set(paper_models))
    check_variants(experiment, read_scale(scale), scale)


def test_a_scale_at_which_two_variants_are_the_same_model_is_refused():
  scale = read_scale("shallow")
  message = r"--run=groups: '2 groups' and '4 groups' are the same model at --scale=shallow: take .* \(--variants\)"
  with pytest.raises(UserError, match=message):
    check_variants(catalog.load("groups"), scale, "shallow")
  shared = [f"E=128 {name}" for name in ("all-shared", "shared-attention", "shared-FFN", "not-shared")]
  check_variants(catalog.with_variants(catalog.load("sharing"), shared), scale, "shallow")


def test_the_dropout_of_all_models_can_be_replaced():
  experiment = catalog.with_dropout(catalog.load("sharing"), 0.0)
  for variant, before in zip(experiment.variants, catalog.load("sharing").variants, strict=True):
    model, model_before = (read_scale("small").model(v, VOCAB_SIZE) for v in (variant, before))
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (0, 0)
    assert model == dataclasses.replace(model_before, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  assert experiment.note == "Here all models have a dropout of 0 (--dropout)."
  message = r"--dropout=0\.2 with --run=dropout, which compares dropout rates: leave the flag"
  with pytest.raises(UserError, match=message):
    catalog.with_dropout(catalog.load("dropout"), 0.2)


def test_some_variants_can_be_selected():
  experiment = catalog.with_variants(catalog.load("sentence_loss"), ["SOP", "NSP"])
  assert [variant.name for variant in experiment.variants] == ["NSP", "SOP"]


@pytest.mark.parametrize(
  ("name", "variants", "message"),
  [
    ("sentence_loss", ["SOP", "RTD"], "--variants=RTD: sentence_loss has none, NSP, SOP"),
    ("depth", ["3 layers"], "--variants=3 layers: 3 layers needs 1 layer: name it, too"),
    ("overall", ["ALBERT-base"], "--variants=ALBERT-base: speeds are relative to BERT-large: name it, too"),
  ],
)
def test_variants_that_are_unknown_or_need_others_are_refused(name: str, variants: list[str], message: str):
  with pytest.raises(UserError, match=message):
    catalog.with_variants(catalog.load(name), variants)


def _write_experiment(tmp_path: Path, **changes: object) -> str:
  experiment = {"title": "t", "source": "s", "model": "albert_base", "variants": [{"name": "a"}, {"name": "b"}]}
  path = tmp_path / "mine.json"
  path.write_text(json.dumps(experiment | changes))
  return str(path)


def test_a_users_file_is_loaded(tmp_path: Path):
  experiment = catalog.load(_write_experiment(tmp_path, steps=2, variants=[{"name": "a"}, {"name": "b", "steps": 1}]))
  assert (experiment.name, [variant.steps for variant in experiment.variants]) == ("mine", [2, 1])
  assert experiment.intrinsic == ("mlm", "sop")


def test_a_variant_has_the_files_fields_unless_it_has_its_own(tmp_path: Path):
  variants = [{"name": "a"}, {"name": "b", "fields": {"num_hidden_layers": 6, "hidden_dropout_prob": 0.2}}]
  experiment = catalog.load(_write_experiment(tmp_path, fields={"hidden_dropout_prob": 0.1}, variants=variants))
  assert [variant.fields for variant in experiment.variants] == [
    {"hidden_dropout_prob": 0.1},
    {"hidden_dropout_prob": 0.2, "num_hidden_layers": 6},
  ]


def test_a_smaller_scale_may_have_another_model(tmp_path: Path):
  path = _write_experiment(tmp_path, model="albert_xxlarge", steps=8, reduced={"model": "albert_base", "steps": 1})
  variants = [catalog.load(path, reduced=reduced).variants[0] for reduced in (False, True)]
  assert [(variant.model, variant.steps) for variant in variants] == [("albert_xxlarge", 8), ("albert_base", 1)]


@pytest.mark.parametrize(("field", "size"), [("hidden_size", 1536), ("embedding_size", 100), ("num_hidden_layers", 5)])
def test_a_size_without_a_reduced_value_gives_one_line(tmp_path: Path, field: str, size: int):
  (variant, _) = catalog.load(
    _write_experiment(tmp_path, variants=[{"name": "a", "fields": {field: size}}, {"name": "b"}])
  ).variants
  assert getattr(read_scale("paper").model(variant, VOCAB_SIZE), field) == size
  with pytest.raises(UserError, match=f"a: {field}={size} has no value at this scale: .*scale=paper"):
    read_scale("small").model(variant, VOCAB_SIZE)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"reduced": {"layers": 3}}, r"mine\.json: a key in \$\.reduced is 'layers', which is not one of its possible"),
    ({"fields": {"depth": 3}}, r"variant 'a': unknown key 'depth'"),
    ({"variant": []}, r"mine\.json: has the unknown key 'variant'"),
    ({"title": 3}, r"mine\.json: \$\.title must be a text, it is a whole number"),
    ({"variants": [{"name": "a", "colour": 1}]}, r"\$\.variants\[0\] has the unknown key 'colour'"),
    ({"variants": [{"name": "a"}, {"name": "a"}]}, r"variant 'a': another variant has this name"),
    (
      {"variants": [{"name": "a", "starts_from": "b"}, {"name": "b"}]},
      r"variant 'a': starts_from 'b' does not name an earlier variant; these are: none",
    ),
    ({"variants": [{"name": "a", "corpus": "more"}]}, r"\$\.variants\[0\]\.corpus is 'more', which is not one of"),
    ({"variants": [{"name": "a", "model": "albert_huge"}]}, "model=albert_huge: unknown model"),
    ({"variants": [{"name": "a", "fields": {"depth": 3}}]}, "unknown key 'depth'"),
    ({"variants": [{"name": "a", "data": {"ngrams": 3}}]}, r"a key in \$\.variants\[0\]\.data is 'ngrams'"),
    ({"intrinsic": ["rte"]}, r"\$\.intrinsic\[0\] is 'rte', which is not one of its possible values"),
    (
      {"variants": [{"name": "a"}, {"name": "b", "same_time_as": "c"}]},
      r"variant 'b': same_time_as 'c' does not name an earlier variant; these are: a",
    ),
    (
      {"variants": [{"name": "a", "candidate_for": "row"}]},
      "candidate_for compares perplexities: add ppl to intrinsic",
    ),
    ({"speed_of": "c"}, "speed_of 'c' is not one of a, b"),
  ],
)
def test_a_mistake_in_a_file_gives_one_line(tmp_path: Path, changes: dict[str, object], message: str):
  with pytest.raises(UserError, match=message):
    catalog.load(_write_experiment(tmp_path, **changes))


def test_an_unknown_name_lists_the_known_names():
  with pytest.raises(UserError, match=r"--run=sop: no such experiment; there are additional_data, .* sentence_loss"):
    catalog.load("sop")
