"""The clients of the guide to serving give the model's answers when they are run as they are printed there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server_load import RunningServer, call_alone
from tests.docs.blocks import ROOT, Block, blocks
from tests.examples.test_serve import assert_equal_predictions, load_model

pytestmark = pytest.mark.serving

GUIDE = ROOT / "docs" / "serving.md"
TEXTS = ("They drank the pub dry.", "They drank the pub.")


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
  with RunningServer(models / "cola") as running:
    yield running


def find_blocks(section: str, language: str) -> list[Block]:
  text = GUIDE.read_text(encoding="utf-8")
  start = text.index(f"\n## {section}\n")
  end = text.find("\n## ", start + 1)
  return [block for block in blocks(GUIDE) if block.language == language and block.text in text[start:end]]


def run_block(block: Block, command: Sequence[str], server: RunningServer, directory: Path) -> str:
  """Runs a block with the port of the server instead of 8501, and returns what it prints."""
  assert "localhost:8501" in block.text
  text = block.text.replace("localhost:8501", f"127.0.0.1:{server.port}")
  environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
  result = subprocess.run(
    [*command, text], cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=120
  )
  assert result.returncode == 0, result.stderr
  return result.stdout


def expected_predictions(models: Path) -> Sequence[Any]:
  """What the SavedModel answers to TEXTS."""
  model = load_model(models, "cola")
  return call_alone(model.signatures["serving_default"], [{"text": text} for text in TEXTS]).replies


def test_curl(server: RunningServer, models: Path) -> None:
  block = find_blocks("Clients", "sh")[0]
  # curl prints nothing between the answers.
  decoder, text, answers = json.JSONDecoder(), run_block(block, ["bash", "-ec"], server, models.parent), []
  while text:
    answer, end = decoder.raw_decode(text)
    answers.append(answer)
    text = text[end:].lstrip()
  predictions, examples, status = answers
  assert_equal_predictions(predictions["predictions"], expected_predictions(models))
  example = json.loads((models / "cola/1/examples/serving_default.answer.json").read_text(encoding="utf-8"))
  assert [row["label"] for row in examples["predictions"]] == [row["label"] for row in example["predictions"]]
  assert status["model_version_status"][0]["state"] == "AVAILABLE"


def test_curl_asks_a_question(models: Path) -> None:
  block = find_blocks("Clients", "sh")[1]
  with RunningServer(models / "squad") as server:
    (prediction,) = json.loads(run_block(block, ["bash", "-ec"], server, models.parent))["predictions"]
  assert {"answer", "best_text", "score", "start", "end"} <= prediction.keys()


def test_health_and_metrics(server: RunningServer, models: Path) -> None:
  (block,) = [block for block in find_blocks("A server of one file", "sh") if "metrics" in block.text]
  printed = run_block(block, ["bash", "-ec"], server, models.parent)
  guide = GUIDE.read_text(encoding="utf-8")
  for name in ("serve_requests_total", "serve_request_seconds", "serve_batch_size", "serve_queue_length"):
    assert f"`{name}`" in guide
    assert name in printed


def parse_lines(printed: str) -> list[dict[str, Any]]:
  words = [line.partition(" ") for line in printed.splitlines()]
  return [{"label": label, "probabilities": json.loads(values)} for label, _, values in words]


def test_python(server: RunningServer, models: Path) -> None:
  (block,) = find_blocks("Clients", "python")
  printed = run_block(block, [sys.executable, "-c"], server, models.parent)
  assert_equal_predictions(parse_lines(printed), expected_predictions(models))


def test_python_says_what_the_server_says(server: RunningServer, models: Path) -> None:
  (block,) = find_blocks("Clients", "python")
  wrong = block._replace(text=block.text.replace('{"text": "They drank the pub."}', "{}"))
  with pytest.raises(AssertionError, match="RuntimeError: instances: 1: text: Field required"):
    run_block(wrong, [sys.executable, "-c"], server, models.parent)


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
def test_javascript(server: RunningServer, models: Path) -> None:
  (block,) = find_blocks("Clients", "js")
  printed = run_block(block, ["node", "--input-type=module", "--eval"], server, models.parent)
  lines = "".join(printed.replace("\n", " ").replace("]", "]\n").splitlines(keepends=True)).strip().splitlines()
  assert_equal_predictions(parse_lines("\n".join(line.strip() for line in lines)), expected_predictions(models))
