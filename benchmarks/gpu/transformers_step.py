"""Runs the pretraining step of Hugging Face's transformers on the records of an exported step, with PyTorch.

  python -m benchmarks.gpu.transformers_step PACKAGE --batch_size=32

The model has the sizes of the package's model, fused attention (scaled_dot_product_attention) and torch.compile, and
autocasts to the package's precision. As in the exported step, logits are computed only at the masked positions. The
optimizer is PyTorch's fused AdamW, since PyTorch has no LAMB. It prints a line of JSON (timing.Measurement).
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers

from benchmarks.gpu import timing
from benchmarks.gpu.step_package import Manifest, Records

_SIZES = (
  "vocab_size",
  "hidden_size",
  "num_hidden_layers",
  "num_attention_heads",
  "intermediate_size",
  "max_position_embeddings",
  "type_vocab_size",
  "hidden_dropout_prob",
  "attention_probs_dropout_prob",
)


class PretrainingLoss(torch.nn.Module):
  """The pretraining model of transformers, with the losses of the exported step.

  Args:
    manifest: the description of the exported step.
  """

  def __init__(self, manifest: Manifest):
    super().__init__()
    sizes: dict[str, Any] = {name: manifest.model[name] for name in _SIZES}
    sizes |= {"hidden_act": "gelu_new", "attn_implementation": "sdpa"}
    self.is_bert = manifest.model["sharing"] == "none"
    if self.is_bert:
      self.model = transformers.BertForPreTraining(transformers.BertConfig(**sizes))
    else:
      sizes |= {"embedding_size": manifest.model["embedding_size"], "classifier_dropout_prob": 0.0}
      self.model = transformers.AlbertForPreTraining(transformers.AlbertConfig(**sizes))

  def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss and the masked LM loss, float32 scalars.

    Args:
      batch: the features of the exported step, each [B, ...].
    """
    encoder = self.model.bert if self.is_bert else self.model.albert
    encoded = encoder(batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"])
    rows = torch.arange(len(batch["input_ids"]), device=batch["input_ids"].device)[:, None]
    hidden = encoded.last_hidden_state[rows, batch["masked_lm_positions"]]
    logits = self.model.cls.predictions(hidden) if self.is_bert else self.model.predictions(hidden)
    head = self.model.cls.seq_relationship if self.is_bert else self.model.sop_classifier
    order = head(encoded.pooler_output)
    weights = batch["masked_lm_weights"].flatten()
    losses = torch.nn.functional.cross_entropy(
      logits.float().flatten(0, 1), batch["masked_lm_ids"].flatten(), reduction="none"
    )
    masked_lm_loss = (weights * losses).sum() / weights.sum()
    order_loss = torch.nn.functional.cross_entropy(order.float(), batch["next_sentence_labels"].flatten())
    return masked_lm_loss + order_loss, masked_lm_loss


class TransformersStep:
  """Training steps on the GPU, or on the processor if there is none.

  Args:
    options: the arguments of timing.make_parser, and `compile`.
  """

  def __init__(self, options: argparse.Namespace):
    torch.manual_seed(options.seed)
    self.device = "cuda" if torch.cuda.is_available() else "cpu"
    self.batch_size = options.batch_size
    self.manifest = Manifest.read(options.package)
    self.records = Records(options.package, self.manifest)
    self.num_steps = 0
    module = PretrainingLoss(self.manifest).to(self.device).train()
    self._parameters = list(module.parameters())
    self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-4, weight_decay=0.01, fused=True)
    self._loss = torch.compile(module) if options.compile else module

  def batch(self) -> dict[str, torch.Tensor]:
    """Returns the next batch on the device. Integers are int64, as PyTorch needs them for lookups."""
    values = self.records.batch(self.num_steps, self.batch_size)
    tensors = {name: torch.from_numpy(array).to(self.device) for name, array in values.items()}
    return {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in tensors.items()}

  def run(self, num_steps: int) -> float:
    """Does updates, waits for the device, and returns their mean masked LM loss."""
    total = torch.zeros((), device=self.device)
    for _ in range(num_steps):
      batch = self.batch()
      with torch.autocast(self.device, torch.bfloat16, enabled=self.manifest.precision == "bfloat16"):
        loss, masked_lm_loss = self._loss(batch)
      loss.backward()
      torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
      self._optimizer.step()
      self._optimizer.zero_grad()
      total += masked_lm_loss.detach()
      self.num_steps += 1
    return float(total) / num_steps


def main() -> None:
  """Does steps and prints a timing.Measurement."""
  parser = timing.make_parser(__doc__)
  parser.add_argument("--no-compile", dest="compile", action="store_false", help="without torch.compile")
  options = parser.parse_args()
  torch.set_float32_matmul_precision("high")
  step = TransformersStep(options)
  on_gpu = step.device == "cuda"
  name = torch.cuda.get_device_name() if on_gpu else "cpu"
  versions = {"torch": torch.__version__, "transformers": transformers.__version__}
  timing.measure(step.run, options, name, torch.cuda.max_memory_allocated if on_gpu else lambda: 0, versions)


if __name__ == "__main__":
  main()
