"""--init_checkpoint: weights from an earlier run (or the original's checkpoints), matched by name, or an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from albert import files
from albert.errors import UserError
from albert.training import checkpoints

# Not weights: the optimizer's moments and the step.
_NOT_WEIGHTS = re.compile(r"(/adam_m|/adam_v|^global_step)$")
_GROUP = re.compile(r"/group_(\d+)/")


def find_prefix(path: str) -> str:
  """The tensor bundle that `path` means: a prefix, a checkpoint directory, or a run's output_dir (its newest).

  Raises:
    UserError: nothing there, or a checkpoint that does not verify.
  """
  if files.exists(path + ".index"):
    return path
  if files.exists(files.join(path, checkpoints.PREFIX + ".index")):
    damage = checkpoints.find_damage(path)
    if damage:
      raise UserError(f"--init_checkpoint={path}: {damage}; give another checkpoint")
    return files.join(path, checkpoints.PREFIX)
  for directory in (path, files.join(path, "checkpoints")):
    steps = [n for n in files.listdir(directory) if re.match(r"^step-\d+$", n)] if files.is_dir(directory) else []
    for name in sorted(steps, key=lambda n: int(n[5:]), reverse=True):
      if checkpoints.find_damage(files.join(directory, name)) is None:
        return files.join(directory, name, checkpoints.PREFIX)
  raise UserError(
    f"--init_checkpoint={path}: no checkpoint there; give a checkpoint prefix (the part before .index), a "
    "step-N directory, or the output_dir of a run"
  )


def _shallower_name(name: str, groups: int, source_groups: int) -> str:
  """The source's name of a weight of a deeper network: group g of n starts from group floor(g * m / n) of m."""

  def source_group(match: re.Match[str]) -> str:
    return f"/group_{int(match.group(1)) * source_groups // groups}/"

  return _GROUP.sub(source_group, name)


def _num_groups(names: Sequence[str], half: str) -> int:
  found = [_GROUP.search(name) for name in names if half in name]
  return 1 + max((int(match.group(1)) for match in found if match), default=0)


def warm_start(
  path: str,
  variables: Mapping[str, tf.Variable],
  *,
  fresh: Sequence[str] = (),
  ignored: Sequence[str] = (),
  from_shallower: bool = False,
) -> list[str]:
  """Assigns `variables` from the checkpoint at `path`.

  Args:
    path: see find_prefix.
    variables: the model's, by the original's names.
    fresh: prefixes of variables that may be missing from the checkpoint (a new task head).
    ignored: prefixes of the checkpoint's weights that may go unused (the heads of pretraining).
    from_shallower: a network of more groups takes its groups from the checkpoint's fewer ones
      (ALBERT, section 4.7: deeper networks start from shallower ones).
  Returns:
    Names of the variables that keep their initial values (only those under `fresh`).
  Raises:
    UserError: any other variable that is missing, has another shape, or is left over; each is named.
  """
  prefix = find_prefix(path)
  reader = tf.train.load_checkpoint(prefix)
  shapes = {name: list(shape) for name, shape in reader.get_variable_to_shape_map().items()}
  source = {_plain(name): name for name in shapes if not _NOT_WEIGHTS.search(name)}
  sources = {name: name for name in variables}
  if from_shallower:
    for half in ("/attention_1/", "/ffn_1/", "/LayerNorm/", "/LayerNorm_1/"):
      ours, theirs = _num_groups(list(variables), half), _num_groups(list(source), half)
      sources |= {n: _shallower_name(n, ours, theirs) for n in variables if half in n and _GROUP.search(n)}
  missing: list[str] = []
  misshapen: list[str] = []
  kept: list[str] = []
  for name, variable in variables.items():
    if sources[name] not in source:
      (kept if name.startswith(tuple(fresh)) else missing).append(name)
    elif shapes[source[sources[name]]] != list(variable.shape):
      misshapen.append(f"{name} {shapes[source[sources[name]]]} instead of {list(variable.shape)}")
  unused = [n for n in source if n not in set(sources.values()) and not n.startswith(tuple(ignored))]
  for problem, names in (("lacks", missing), ("has another shape for", misshapen), ("has unused", unused)):
    if names:
      raise UserError(
        f"--init_checkpoint={path}: {problem} {len(names)} weights: {', '.join(sorted(names)[:4])}"
        f"{', ...' if len(names) > 4 else ''}; give the --albert_config_file or --model it was made with"
      )
  for name, variable in variables.items():
    if name not in kept:
      variable.assign(reader.get_tensor(source[sources[name]]))
  return kept


def _plain(name: str) -> str:
  return name.removeprefix("module/")  # TF-Hub's copies of the original carry it
