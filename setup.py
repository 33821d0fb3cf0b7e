"""Packaging. The version ranges here include those of every tested profile, which constraints/ pins exactly."""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent

setup(
  name="albert-tf2",
  version=runpy.run_path(str(ROOT / "albert" / "version.py"))["VERSION"],
  description="ALBERT (ICLR 2020) in TensorFlow 2: pretraining, fine-tuning and serving",
  keywords="ALBERT BERT language-model pretraining fine-tuning GLUE SQuAD RACE LAMB TensorFlow Keras TPU",
  long_description=(ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").exists() else "",
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  license_files=["LICENSE"],
  classifiers=[
    "Development Status :: 5 - Production/Stable",
    "Environment :: Console",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "Operating System :: MacOS",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: Text Processing :: Linguistic",
    "Typing :: Typed",
  ],
  # An installation has the files of configs/ in the package albert.configs; albert.config.recipes reads them there.
  packages=[*find_packages(include=["albert", "albert.*", "data_prep", "data_prep.*"]), "albert.configs"],
  package_dir={"albert.configs": "configs"},
  package_data={
    "albert": ["py.typed", "settings/*.json"],
    "albert.configs": ["*.json", "experiments/*.json", "experiments/scales/*.json"],
    "data_prep": ["py.typed"],
  },
  py_modules=sorted(path.stem for path in ROOT.glob("run_*.py")),
  entry_points={
    "console_scripts": [
      "albert-pretrain = run_pretraining:main",
      "albert-classify = run_classifier:main",
      "albert-squad = run_squad:main",
      "albert-race = run_race:main",
      "albert-tag = run_tagging:main",
      "albert-convert = albert.cli:convert",
      "albert-embed = albert.cli:embed",
      "albert-ensemble = albert.cli:ensemble",
      "albert-experiments = albert.cli:experiments",
      "albert-export = albert.cli:export",
      "albert-leaderboard = albert.cli:leaderboard",
      "albert-predict = albert.cli:predict",
      "albert-report = albert.cli:report",
      "albert-create-pretraining-data = data_prep.commands:create_pretraining_data",
      "albert-question-texts = data_prep.commands:question_texts",
      "albert-sample-corpus = data_prep.commands:sample_corpus",
      "albert-split-text = data_prep.commands:split_text",
      "albert-train-vocab = data_prep.commands:train_vocab",
    ],
  },
  # TensorFlow 2.21 has no build for Python 3.14.
  python_requires=">=3.10,<3.14",
  install_requires=[
    "absl-py>=2.0",
    "google-crc32c>=1.5",
    "loky>=3.4",
    "matplotlib>=3.8",
    "msgspec>=0.19",
    "numpy>=1.26,<3",
    "protobuf>=4.25,<8",
    "safetensors>=0.8",
    "scikit-learn>=1.3",
    "scipy>=1.11",
    "sentencepiece>=0.2.3",
    "sentencex>=1.0.32",
    "seqeval>=1.2.2",
    # tensorboard before 2.21 and tensorflow-text in the tfa profile import pkg_resources, which setuptools 82 dropped.
    "setuptools>=65,<81",
    # tf.summary, which writes the event files, imports it; TensorFlow 2.21 no longer brings it.
    "tensorboard>=2.15",
    # 2.15.1 and 2.21 are tested, and 2.20 with Cloud TPU; docs/design/001-stack.md says why.
    "tensorflow>=2.15.1,<2.22",
    "tensorflow-text>=2.15,<2.22",
    "tf-keras>=2.15.1,<2.22",
    "tqdm>=4.66",
  ],
  extras_require={
    # tensorflow-addons cannot be imported with a newer TensorFlow. Both need Python 3.10 or 3.11.
    "tfa": [
      "tensorflow==2.15.1",
      "tensorflow-addons==0.23.0",
      "tensorflow-text==2.15.0",
      "tf-keras==2.15.1",
    ],
    # tensorflow-tpu replaces tensorflow; constraints/tpu.txt says how to install it. benchmarks/tpu_aot.py compiles
    # with jax, which needs Python 3.11.
    "tpu": [
      "jax>=0.7,<0.8; python_version >= '3.11'",
      "jaxlib>=0.7,<0.8; python_version >= '3.11'",
      "libtpu==0.0.20",
      "tensorflow-tpu==2.20.0",
    ],
    # TensorFlow with the CUDA libraries that it was built for; the driver must be there already.
    "gpu": ["tensorflow[and-cuda]>=2.20,<2.22; sys_platform == 'linux'"],
    "beam": ["apache-beam>=2.70,<3"],
    "ray": ["ray>=2.49,<3"],
    # What train_vocab trains WordPiece vocabularies with.
    "tokenizers": ["tokenizers>=0.20,<1"],
    # Optional libraries of data_prep.readers.
    "zstd": ["zstandard>=0.22"],
    "parquet": ["pyarrow>=15"],
    # Frames of albert.Predictor.
    "pandas": ["pandas>=2.2,<4"],
    "datasets": ["pyarrow>=15"],
    "wikipedia": ["mwparserfromhell>=0.6.5"],
    "onnx": ["onnx>=1.15", "onnxruntime>=1.16", "tf2onnx>=1.16"],
    # The interpreter of TFLite models, without TensorFlow's deprecated copy of it.
    "tflite": ["ai-edge-litert>=1.0"],
    # What examples/serve.py runs on.
    "server": ["fastapi>=0.115", "prometheus-client>=0.20", "pydantic>=2", "starlette>=0.40", "uvicorn>=0.30"],
    # More engines that benchmarks/bench_engines.py compares.
    "engines": ["nncf>=3", "openvino>=2026"],
    # Libraries with which tests and benchmarks compare results and speed. JAX runs the steps that
    # benchmarks/gpu_step.py exports. transformers 5 needs Python 3.11.
    "parity": [
      "accelerate>=1.1",
      "jax>=0.10,<0.13",
      "jaxlib>=0.10,<0.13",
      "keras>=3.12",
      "keras-hub>=0.32",
      "sentence-transformers>=6",
      "torch>=2.6",
      "transformers>=5.24,<6",
    ],
    # The tools that build the documentation site.
    "docs": ["griffelib>=2", "mkdocstrings[python]>=1.0", "ruff", "zensical>=0.0.73; python_version >= '3.11'"],
    # ipykernel, nbclient and nbformat run the notebooks of examples/.
    "dev": [
      "hypothesis",
      "import-linter>=2",
      "ipykernel>=6.29",
      "mwparserfromhell>=0.6.5",
      "mypy",
      "nbclient>=0.10",
      "nbformat>=5.10",
      "packaging",
      "pandas>=2.2,<4",
      "pyarrow>=15",
      "pytest>=8",
      "pytest-xdist",
      "ruff",
      "zstandard>=0.22",
    ],
  },
)
