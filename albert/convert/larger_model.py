"""Makes a model larger before it is converted: adds tokens to its vocabulary, or positions for longer texts.

A token that is added always stays whole. To the pieces of a SentencePiece model it is added twice: with ▁ for the start
of a word, and without it for elsewhere. Its score is so high that no other pieces for the same text have a higher sum,
so SentencePiece, transformers and the graph give the same ids, and text is normalized as before. A WordPiece vocabulary
takes the longest piece that fits, so that the token is one more line; it must be a word by the rules of BERT.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from albert.config.model import ModelConfig
from albert.convert.model import ConvertedModel
from albert.data.tables import read_lines
from albert.errors import UserError
from albert.io import files
from albert.io.json_text import decode_object
from albert.io.progress import log
from albert.io.text import counted
from albert.tokenization.sentence_piece import SentencePieceVocabulary
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.tokenizer_json import encode_piece
from albert.tokenization.vocabulary import WORD_START, read_vocabulary_files
from albert.weights.names import WORD_EMBEDDINGS

_POSITION_EMBEDDINGS, _OUTPUT_BIAS = "bert/embeddings/position_embeddings", "cls/predictions/output_bias"


def add_positions(model: ConvertedModel, num_positions: int) -> ConvertedModel:
  """Returns a model for longer texts: the position embeddings continue with copies of the first ones, in order."""
  rows = model.weights[_POSITION_EMBEDDINGS]
  if num_positions <= len(rows):
    raise UserError(f"--max_position_embeddings={num_positions}: the model has {len(rows)} positions: give more")
  config = dataclasses.replace(model.config, max_position_embeddings=num_positions)
  longer = _replace_rows(model, config, {_POSITION_EMBEDDINGS: np.resize(rows, (num_positions, rows.shape[1]))})
  # The length with which a run was trained would be the limit of transformers' tokenizer.
  run = {**model.run, "data": {**model.run.get("data", {}), "max_seq_length": num_positions}}
  return dataclasses.replace(longer, run=run)


def add_tokens(model: ConvertedModel, path: str, directory: str) -> ConvertedModel:
  """Returns a model with more tokens, and writes its vocabulary.

  The embedding of a new piece is the mean of those of the pieces that stood for its text before, and so is its bias in
  the masked language model: its logit is the mean of their logits.

  Args:
    model: the model.
    path: a file with a token on each line; blank lines are ignored.
    directory: where to write the vocabulary.
  Raises:
    UserError: a line is no word that can stay whole, all are single pieces, or the kind of the vocabulary has merges.
  """
  if model.tokenizer_config is None:
    raise UserError(f"--add_tokens={path}: the weights have no vocabulary beside them: give --spm_model_file")
  old = load_tokenizer(model.tokenizer_config)
  contents = read_vocabulary_files(old.model_file)
  name = next(iter(contents))
  is_unigram = isinstance(old.vocabulary, SentencePieceVocabulary) and old.vocabulary.is_unigram
  if not is_unigram and name != "vocab.txt":
    raise UserError(f"--add_tokens={path}: {old.model_file} must be a unigram vocabulary or a vocab.txt: take such")

  # The new pieces, and the pieces that stood for their texts before.
  lines = _read_tokens(path, old)
  old_ids: dict[str, list[int]] = {}
  new_tokens = []
  for token in lines:
    ids = old.encode(token)
    if len(ids) == 1 and ids != [old.special_ids.unk]:
      continue
    new_tokens.append(token)
    if is_unigram:
      old_ids[WORD_START + token] = ids
      first_id = int(old.vocabulary.ids_inside_word[ids[0]])
      ids = ids[1:] if first_id < 0 else [first_id, *ids[1:]]
    old_ids[token] = ids
  for piece in old_ids.keys() & {*old.pieces}:
    del old_ids[piece]
  if not new_tokens:
    raise UserError(f"--add_tokens={path}: has no token that {old.model_file} cuts into pieces: leave the flag out")

  # The vocabulary. A tokenizer with it must not cut the tokens.
  contents[name] = _with_pieces(old, name, contents[name], list(old_ids))
  for file_name, content in contents.items():
    files.write_atomically(files.join(directory, file_name), content)
  settings = dataclasses.replace(model.tokenizer_config, model_file=files.join(directory, name))
  new = load_tokenizer(settings)
  for token in new_tokens:
    if len(new.encode(token)) > 1:
      raise UserError(f"{path}, line {lines[token]}: {token!r} would be cut in any case: leave it out, or change it")
  log(f"{path}: {counted(len(new_tokens), 'token')} of {len(lines)} added, as {counted(len(old_ids), 'piece')}")

  # The weights. Embeddings that are padded to a larger number have room for the first new pieces.
  weights = {}
  for key in {WORD_EMBEDDINGS, _OUTPUT_BIAS} & model.weights.keys():
    rows = model.weights[key]
    new_rows = [rows[ids].mean(axis=0, dtype=np.float64).astype(np.float32) for ids in old_ids.values()]
    weights[key] = np.concatenate([rows[: old.vocab_size], new_rows, rows[new.vocab_size :]])
  config = dataclasses.replace(model.config, vocab_size=len(weights[WORD_EMBEDDINGS]))
  return dataclasses.replace(_replace_rows(model, config, weights), tokenizer_config=settings)


def _read_tokens(path: str, tokenizer: Tokenizer) -> dict[str, int]:
  """Returns the tokens of a file, normalized like text, and the first line of each."""
  tokens: dict[str, int] = {}
  special_pieces = [tokenizer.pieces[i] for i in tokenizer.is_special.nonzero()[0]]
  for number, line in read_lines(path):
    if not (word := line.strip()):
      continue
    token = tokenizer.normalize(word)
    if isinstance(tokenizer.vocabulary, SentencePieceVocabulary):
      token = tokenizer.vocabulary.processor.normalize(token).removeprefix(WORD_START)
    if word in special_pieces or not token or " " in token or WORD_START in token:
      raise UserError(f"{path}, line {number}: {word!r} is special, or several words, as Han characters are: change it")
    tokens.setdefault(token, number)
  return tokens


def _with_pieces(tokenizer: Tokenizer, name: str, content: bytes, pieces: list[str]) -> bytes:
  """Returns the content of the file of a vocabulary with more pieces at its end."""
  if not isinstance(tokenizer.vocabulary, SentencePieceVocabulary):
    return content.rstrip(b"\n") + "".join(f"\n{piece}" for piece in pieces).encode() + b"\n"
  # No character costs more than <unk>, 10 below the lowest score, so nothing makes up for cutting such a piece.
  processor = tokenizer.vocabulary.processor
  lowest_score = min(map(processor.get_score, range(tokenizer.vocab_size)))
  scores = {piece: (10 - lowest_score) * len(piece) for piece in pieces}
  if name.endswith(".json"):
    values = decode_object(tokenizer.model_file, content)
    values["model"]["vocab"] += scores.items()
    return json.dumps(values, ensure_ascii=False).encode()
  return content + b"".join(encode_piece(piece.encode(), score) for piece, score in scores.items())


def _replace_rows(model: ConvertedModel, config: ModelConfig, weights: dict[str, np.ndarray]) -> ConvertedModel:
  """Returns a model with another config and other values of some weights, which get more rows."""
  sources = {name: f"{model.sources[name]} (with more rows)" for name in weights}
  return dataclasses.replace(model, config=config, weights=model.weights | weights, sources=model.sources | sources)
