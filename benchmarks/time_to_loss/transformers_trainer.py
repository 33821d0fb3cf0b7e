"""Pretrains an ALBERT by masked LM with transformers' Trainer for a given time, to compare with this project.

It runs in an environment with torch, transformers and accelerate (`make .venv-parity/installed`). Text, vocabulary,
model and batches are those of a recipe of bench_time_to_loss.py. run_pretraining then evaluates the weights:

  .venv-parity/bin/python benchmarks/time_to_loss/transformers_trainer.py --corpus='novels/train/*.txt' \
    --spm_model_file=time_to_loss/vocab/spiece.model --output_dir=trainer --seconds=600 --learning_rate=0.001
  python run_pretraining.py --recipe=none --init_checkpoint=trainer --sentence_prediction=none --do_eval \
    --spm_model_file=time_to_loss/vocab/spiece.model --eval_input_file='time_to_loss/shards/heldout/*.tfrecord' \
    --output_dir=trainer_eval

Tokens are counted out and masks are drawn by transformers' own tokenizer and collator.
"""

from __future__ import annotations

import argparse
import glob
import json
import time
from pathlib import Path
from typing import Any

import torch
from sentencepiece import SentencePieceProcessor
from transformers import (
  AlbertConfig,
  AlbertForMaskedLM,
  AlbertTokenizer,
  DataCollatorForLanguageModeling,
  Trainer,
  TrainingArguments,
)

RECIPES_FILE = Path(__file__).parent / "recipes.json"
# Steps that measure the time of a step, and steps before them that do not count.
_MEASURED_STEPS, _SKIPPED_STEPS = 20, 5


class _Blocks(torch.utils.data.Dataset[dict[str, Any]]):
  """The text cut into blocks of equal length, each with [CLS] and [SEP] around it.

  Args:
    tokens: the ids of the whole text.
    length: tokens of each block, with [CLS] and [SEP].
    tokenizer: gives the ids of [CLS] and [SEP].
  """

  def __init__(self, tokens: list[int], length: int, tokenizer: AlbertTokenizer):
    size = length - 2
    starts = range(0, len(tokens) - size + 1, size)
    self._blocks = [[tokenizer.cls_token_id, *tokens[at : at + size], tokenizer.sep_token_id] for at in starts]

  def __len__(self) -> int:
    return len(self._blocks)

  def __getitem__(self, index: int) -> dict[str, Any]:
    return {"input_ids": self._blocks[index]}


def _read_tokens(pattern: str, tokenizer: AlbertTokenizer) -> list[int]:
  """Tokenizes all lines of the text."""
  tokens: list[int] = []
  for path in sorted(glob.glob(pattern)):
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
      tokens.extend(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)))
  return tokens


def _make_trainer(
  settings: dict[str, Any], vocab_size: int, options: argparse.Namespace, data: _Blocks, collator: Any, num_steps: int
) -> Trainer:
  """Makes a new model, and a Trainer for a number of steps."""
  torch.manual_seed(options.seed)
  names = ("embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
  more_names = ("max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
  config = AlbertConfig(vocab_size=vocab_size, **{name: settings[name] for name in (*names, *more_names)})
  arguments = TrainingArguments(
    output_dir=options.output_dir,
    use_cpu=True,
    bf16=settings["precision"] == "bfloat16",
    per_device_train_batch_size=settings["train_batch_size"],
    learning_rate=options.learning_rate,
    weight_decay=0.01,
    warmup_steps=settings["warmup_proportion"],  # below 1: the share of all steps
    max_steps=num_steps,
    logging_steps=100,
    save_strategy="no",
    report_to=[],
    seed=options.seed,
    disable_tqdm=True,
  )
  model = AlbertForMaskedLM(config)
  if config.embedding_size == config.hidden_size:
    _freeze_projection(model.albert.encoder.embedding_hidden_mapping_in)
  return Trainer(model, arguments, data_collator=collator, train_dataset=data)


def _freeze_projection(projection: torch.nn.Linear) -> None:
  """Makes the projection of the embeddings the identity. ALBERT has none where both sizes are equal."""
  with torch.no_grad():
    torch.nn.init.eye_(projection.weight)
    torch.nn.init.zeros_(projection.bias)
  projection.requires_grad_(False)


def _seconds_of(trainer: Trainer) -> float:
  start = time.perf_counter()
  trainer.train()
  return time.perf_counter() - start


def main() -> None:
  """Measures the time of a step, trains for as many steps as fit into the given time, and saves the weights."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--corpus", required=True, help="glob of the text to train on")
  parser.add_argument("--spm_model_file", required=True, help="the vocabulary")
  parser.add_argument("--output_dir", required=True, help="directory for the weights and trainer.json")
  parser.add_argument("--seconds", type=float, required=True, help="time of training")
  parser.add_argument("--learning_rate", type=float, required=True)
  parser.add_argument("--seed", type=int, default=12345)
  parser.add_argument("--threads", type=int, default=1)
  options = parser.parse_args()
  torch.set_num_threads(options.threads)
  settings = json.loads(RECIPES_FILE.read_text())["pretraining"]
  pieces = SentencePieceProcessor(options.spm_model_file)
  tokenizer = AlbertTokenizer(vocab=[(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(len(pieces))])
  data = _Blocks(_read_tokens(options.corpus, tokenizer), settings["max_position_embeddings"], tokenizer)
  collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

  def make_trainer(num_steps: int) -> Trainer:
    return _make_trainer(settings, len(tokenizer), options, data, collator, num_steps)

  _seconds_of(make_trainer(_SKIPPED_STEPS))
  seconds_per_step = _seconds_of(make_trainer(_MEASURED_STEPS)) / _MEASURED_STEPS
  trainer = make_trainer(max(1, round(options.seconds / seconds_per_step)))
  seconds = _seconds_of(trainer)
  trainer.save_model()
  tokenizer.save_pretrained(options.output_dir)
  result = {"steps": trainer.state.max_steps, "seconds": seconds, "learning_rate": options.learning_rate}
  Path(options.output_dir, "trainer.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
  print(json.dumps(result))


if __name__ == "__main__":
  main()
