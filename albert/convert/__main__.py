"""Converts weights between the formats of this project, of the original and of Hugging Face.

python -m albert.convert --init_checkpoint=run --output_dir=converted --format=huggingface
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()


from absl import flags

from albert.config import command_flags
from albert.config.command_flags import Range
from albert.convert.convert_checkpoint import FORMATS, convert
from albert.convert.huggingface import ARCHITECTURES
from albert.io import files
from albert.runs.output_files import CONVERSION


def define_flags() -> None:
  """Defines the flags of this command."""
  command_flags.define(
    "str",
    "init_checkpoint",
    None,
    "weights to convert: a checkpoint of this project or of the original (prefix, step-N directory or output_dir), a "
    "Hugging Face directory, or a file of safetensors or torch.save",
    required=True,
  )
  command_flags.define(
    "str", "output_dir", None, "directory to write to; it must not exist yet, or be empty", required=True
  )
  command_flags.define(
    "str",
    "format",
    None,
    "albert: a checkpoint for --init_checkpoint of training; tf1: model.ckpt for the original's code; huggingface: a "
    "directory for transformers; sentence_transformers: one for sentence-transformers",
    choices=FORMATS,
    required=True,
  )
  command_flags.define("str", "albert_config_file", "", "the model's config (default: the one beside the weights)")
  command_flags.define("str", "spm_model_file", "", "the vocabulary (default: the one beside the weights)")
  command_flags.define(
    "str",
    "architecture",
    None,
    "transformers class that config.json names (default: the class that has the model's head)",
    choices=ARCHITECTURES,
  )
  meaning = "file with a word on each line that always stays a whole token; its row is the mean of those of its pieces"
  command_flags.define("str", "add_tokens", "", meaning)
  meaning = "number of positions, more than the model has; the new ones are copies of the first ones, in order"
  command_flags.define("int", "max_position_embeddings", None, meaning, allowed=Range(1))


def main() -> None:
  """Runs the command: converts the weights."""
  values = flags.FLAGS
  directory = values.output_dir
  report = convert(
    values.init_checkpoint,
    directory,
    values.format,
    albert_config_file=values.albert_config_file,
    spm_model_file=values.spm_model_file,
    architecture=values.architecture or "",
    add_tokens=values.add_tokens,
    max_position_embeddings=values.max_position_embeddings,
  )
  num_weights = len(report.splitlines()) - 1  # without the header
  print(f"{num_weights} weights in {directory}; {files.join(directory, CONVERSION)} lists them")


if __name__ == "__main__":
  startup.run_command_of(__name__)
