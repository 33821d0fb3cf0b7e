"""Peak speeds of GPUs, and public figures of other implementations."""

from __future__ import annotations

# A part of the device's name -> peak floating-point operations per second in dense products of bfloat16 matrices
# (float16 for V100 and T4), from NVIDIA's data sheets; for H100 and H200 those of the SXM form. The first match counts.
PEAK_FLOPS = {
  "B200": 2250e12,
  "H100 PCIe": 756e12,
  "H100 NVL": 835e12,
  "H100": 989e12,
  "H200": 989e12,
  "A100": 312e12,
  "L40S": 362e12,
  "L4": 121e12,
  "A10G": 70e12,
  "V100": 125e12,
  "T4": 65e12,
}
# (model, length, what was measured, sequences per second, source)
PUBLIC_FIGURES = (
  ("bert_large", 128, "one A100, LAMB", 485.6, "NVIDIA DeepLearningExamples"),
  ("bert_large", 512, "one A100, LAMB", 96.5, "NVIDIA DeepLearningExamples"),
  ("albert_base", 512, "eight V100", 983.0, "aws-samples"),
)


def peak_flops(device: str) -> float | None:
  """Returns the peak operations per second of a device; None if they are not known here.

  Args:
    device: the device's name, such as "NVIDIA H100 80GB HBM3".
  """
  return next((flops for name, flops in PEAK_FLOPS.items() if name in device), None)
