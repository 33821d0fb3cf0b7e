"""The ONNX file of a masked language model holds the word embeddings once, and gives the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from albert.export import other_formats
from albert.export.checkpoint import open_checkpoint, select_form
from albert.export.companion_files import text_inputs
from albert.export.served_model import portable_function, token_inputs
from tests.export.pipelines import FORMS, write_run


@pytest.mark.serving
def test_fill_mask_holds_the_word_embeddings_once(tmp_path: Path, spm_model: str) -> None:
  checkpoint = open_checkpoint(write_run(tmp_path / "run", FORMS["fill_mask"], spm_model, embedding_size=64).directory)
  form = select_form(checkpoint, "fill_mask", {})
  model = form.model_class(checkpoint, form)
  function = portable_function(model)
  content_before = other_formats.convert_to_onnx(function)
  content = other_formats.share_weights(content_before)
  num_bytes = 4 * checkpoint.config.vocab_size * checkpoint.config.embedding_size  # of float32
  assert num_bytes == pytest.approx(len(content_before) - len(content), abs=500)  # besides names and operations
  inputs = token_inputs(model, text_inputs(model.fields, model.examples()))
  answers, expected = (other_formats.onnx_runner(onnx)(inputs) for onnx in (content, content_before))
  assert answers["ids"].tolist() == expected["ids"].tolist()
  np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-6)
