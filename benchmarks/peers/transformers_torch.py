"""Training steps of Hugging Face's transformers on PyTorch.

The model is AlbertForPreTraining, with logits computed only at the masked positions.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import AlbertConfig, AlbertForPreTraining

from benchmarks.peers import protocol


def main() -> None:
  """Builds the model and answers requests for steps."""
  options = protocol.make_parser().parse_args()
  torch.set_num_threads(options.threads)
  torch.manual_seed(0)
  names = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
  config = AlbertConfig(
    **{name: options.config[name] for name in (*names, "intermediate_size", "max_position_embeddings")},
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    classifier_dropout_prob=0.0,
  )
  model = AlbertForPreTraining(config).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
  batch = {name: torch.from_numpy(values.copy()) for name, values in protocol.random_batch(options).items()}
  mask = torch.ones_like(batch["input_ids"])
  rows = torch.arange(options.batch_size)[:, None]

  def do_steps(num_steps: int) -> float:
    for _ in range(num_steps):
      with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bfloat16"):
        encoded = model.albert(batch["input_ids"], attention_mask=mask, token_type_ids=batch["segment_ids"])
        logits = model.predictions(encoded.last_hidden_state[rows, batch["positions"]])
        order = model.sop_classifier(encoded.pooler_output)
      loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())
      loss = loss + torch.nn.functional.cross_entropy(order.float(), batch["order"])
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
    return float(loss)

  protocol.serve(do_steps)


if __name__ == "__main__":
  main()
