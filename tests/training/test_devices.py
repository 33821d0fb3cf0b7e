"""The line that names the devices of a run, and the reason why a GPU is not used."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import RunConfig, TrainConfig
from albert.errors import UserError
from albert.training import distribution, run_plan
from albert.training.distribution import Gpu, GpuFacts, check_memory, describe_devices, unused_gpu_warning
from tests.training.test_distribution import FakeStrategy

A100 = Gpu(name="NVIDIA A100-SXM4-40GB", memory_mib=40960)
FACTS = GpuFacts(gpus=[A100], driver_version="550.54.15")


@pytest.mark.parametrize(
  ("changes", "reason"),
  [
    ({"visible_devices": ""}, "CUDA_VISIBLE_DEVICES='' hides it: unset this variable"),
    ({"visible_devices": "-1", "built_with_cuda": False}, "CUDA_VISIBLE_DEVICES='-1' hides it: unset this variable"),
    ({"visible_devices": "0", "built_with_cuda": False}, "this TensorFlow was built without CUDA: install TensorFlow"),
    ({"missing_libraries": ["libcudnn.so.9"]}, "TensorFlow needs libcudnn.so.9, which cannot be opened: install"),
    ({"driver_version": "470.82.01"}, "its driver 470.82.01 is older than 525.60.13, which CUDA 12 needs: install a"),
    ({"driver_version": "525.60.13", "has_device_files": False}, "cannot open /dev/nvidia*: give the container"),
    ({"driver_version": "[N/A]"}, "TensorFlow does not say why"),
    ({}, "TensorFlow does not say why: run again with TF_CPP_MIN_LOG_LEVEL=0"),
  ],
)
def test_the_reason_and_the_remedy_are_one_line(changes: dict[str, Any], reason: str) -> None:
  warning = unused_gpu_warning(dataclasses.replace(FACTS, **changes))
  assert warning is not None
  assert warning.startswith("warning: NVIDIA A100-SXM4-40GB is not used: ")
  assert reason in warning
  assert "\n" not in warning


def test_nothing_is_said_of_a_machine_without_a_gpu() -> None:
  assert unused_gpu_warning(GpuFacts(built_with_cuda=False, missing_libraries=["libcudnn.so.9"])) is None


def test_the_facts_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  program = tmp_path / "nvidia-smi"
  program.write_text("#!/bin/sh\necho 'Tesla T4, 15360, 470.82.01'\necho 'Tesla T4, [N/A], 470.82.01'\n")
  program.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
  facts = distribution.find_gpu_facts()
  assert facts.gpus == [Gpu(name="Tesla T4", memory_mib=15360), Gpu(name="Tesla T4")]
  assert (facts.driver_version, facts.visible_devices) == ("470.82.01", "1")
  assert facts.built_with_cuda == tf.test.is_built_with_cuda()
  program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
  assert distribution._ask_nvidia_smi() == ([], "")


def set_memory(monkeypatch: pytest.MonkeyPatch, *, mebibytes: int) -> None:
  monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": mebibytes * 2**8}.__getitem__)


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  huge_model = ModelConfig(hidden_size=10**6, num_attention_heads=10)
  message = r"hidden_size 1000000, .* has 5.01e\+12 parameters, which take 55,\d+ GiB with .*: give a smaller model"
  with pytest.raises(UserError, match=message):
    check_memory(huge_model, strategy, trains=True)
  # The 11.7 million parameters of albert_base take 45 MiB, or 134 MiB with both moments.
  set_memory(monkeypatch, mebibytes=140)
  check_memory(ModelConfig(), strategy, trains=True)
  set_memory(monkeypatch, mebibytes=50)
  check_memory(ModelConfig(), strategy, trains=False)
  with pytest.raises(UserError, match="give a smaller model"):
    check_memory(ModelConfig(), strategy, trains=True)


def test_the_line_of_a_run_names_devices_memory_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
  set_memory(monkeypatch, mebibytes=24 * 2**10)
  monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3}, raising=False)
  assert describe_devices(FakeStrategy(1), "float32", FACTS) == "device: CPU, 2 cores, 24 GiB, float32"
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0", "GPU:1"])
  details = {"device_name": "NVIDIA A100-SXM4-40GB", "compute_capability": (8, 0)}
  monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
  assert describe_devices(FakeStrategy(1), "bfloat16", FACTS) == "device: NVIDIA A100-SXM4-40GB, 40 GiB, bfloat16"
  line = describe_devices(FakeStrategy(2), "bfloat16", FACTS)
  assert line == "device: 2 x NVIDIA A100-SXM4-40GB, 40 GiB each, bfloat16"
  line = describe_devices(FakeStrategy(1), "bfloat16", GpuFacts())
  assert line == "device: NVIDIA A100-SXM4-40GB, memory unknown, bfloat16"


def test_a_run_plan_reports_a_gpu_that_is_not_used(
  monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.setattr(distribution, "find_gpu_facts", lambda: dataclasses.replace(FACTS, built_with_cuda=False))
  plan = run_plan.plan_run(RunConfig(output_dir="x", train=TrainConfig(precision="float32")))
  assert "is not used: this TensorFlow was built without CUDA: install" in capsys.readouterr().err
  assert plan.devices.startswith("device: CPU, ")
  assert plan.devices.endswith(", float32")
