"""A slow reference for data_prep.examples.segments in plain Python, which loops over sentences as the original does.

Used by test_segments.
"""

from __future__ import annotations

from data_prep.examples.settings import NONE, NSP, SEGMENTS, SOP, PreparationSettings
from tests.data.reference_draws import draw, to_int_below, to_unit_float

# For each instance seven random numbers are drawn. This is what each decides.
SHORT, TARGET, SPLIT, LABEL, DONOR, DONOR_START, INSTANCE = range(7)
Sentence = list[bool]  # for each token, whether it starts a word
# Tokens of segment A, tokens of segment B, and the label, which is 1 if the segments are swapped or B is random.
Pair = tuple[list[int], list[int], int]


def make_rules(
  max_seq_length: int, short_seq_prob: float, prediction: str, input_format: str = SEGMENTS
) -> PreparationSettings:
  return PreparationSettings(
    max_seq_length=max_seq_length,
    short_seq_prob=short_seq_prob,
    sentence_prediction=prediction,
    input_format=input_format,
  )


class Reference:
  """Cuts one document at a time into instances, with lists of tokens instead of offsets."""

  def __init__(self, texts: list[list[Sentence]], rules: PreparationSettings):
    self.rules = rules
    self.texts: list[list[list[int]]] = []
    self.starts_word: dict[int, bool] = {}
    for text in texts:
      self.texts.append([])
      for sentence in text:
        tokens = list(range(len(self.starts_word), len(self.starts_word) + len(sentence)))
        self.starts_word |= dict(zip(tokens, [True, *sentence[1:]], strict=True))
        self.texts[-1].append(tokens)

  def num_words(self, sentences: list[list[int]]) -> int:
    return sum(self.starts_word[token] for sentence in sentences for token in sentence)

  def draw_numbers(self, key: int, step: int) -> list[int]:
    """Returns the seven random numbers for instance `step` of a document."""
    return [draw(key, step * 7 + purpose) for purpose in range(7)]

  def target_length(self, numbers: list[int]) -> int:
    """Returns the maximum length, or with probability short_seq_prob a random shorter one."""
    longest = self.rules.max_num_tokens
    is_short = to_unit_float(numbers[SHORT]) < self.rules.short_seq_prob
    return 2 + to_int_below(numbers[TARGET], longest - 1) if is_short else longest

  def chunk_size(self, remaining: list[list[int]], target: int) -> int:
    """Returns how many of the remaining sentences of a document form the next chunk."""
    num_sentences = 0
    while num_sentences < len(remaining):
      num_sentences += 1
      has_enough_words = self.num_words(remaining[:num_sentences]) >= self.rules.min_words
      if has_enough_words and sum(map(len, remaining[:num_sentences])) >= target:
        break
    has_few_words_left = self.num_words(remaining[num_sentences:]) < self.rules.min_words
    return len(remaining) if has_few_words_left else num_sentences

  def first_segment_size(self, chunk: list[list[int]], random_number: int) -> int:
    """Returns the number of tokens in the first segment: some sentences, or some words of a single sentence."""
    if len(chunk) > 1:
      num_sentences = 1 + to_int_below(random_number, len(chunk) - 1)
      return sum(map(len, chunk[:num_sentences]))
    word_offsets = [offset for offset, token in enumerate(chunk[0]) if offset > 0 and self.starts_word[token]]
    return word_offsets[to_int_below(random_number, len(word_offsets))]

  def random_segment(self, document: int, target: int, numbers: list[int]) -> list[int]:
    """Returns the tokens of another document from a random sentence on.

    These are whole sentences with together at least `target` tokens, or all sentences up to the end of the document.
    """
    others = [text for index, text in enumerate(self.texts) if index != document]
    text = others[to_int_below(numbers[DONOR], len(others))]
    tokens: list[int] = []
    for sentence in text[to_int_below(numbers[DONOR_START], len(text)) :]:
      tokens += sentence
      if len(tokens) >= target:
        break
    return tokens

  def truncate(self, a: list[int], b: list[int], key: int) -> tuple[list[int], list[int]]:
    """Removes tokens from the longer segment, at its front or its back, until both fit into the maximum length."""
    segments = [list(a), list(b)]
    stream_keys = [draw(draw(key, 2), index) for index in (0, 1)]  # of the random numbers for each segment
    num_removed = [0, 0]
    while len(segments[0]) + len(segments[1]) > self.rules.max_num_tokens:
      index = 0 if len(segments[0]) > len(segments[1]) else 1
      # Bit n of a segment's random numbers says where its n-th token is removed: 1 at the front, 0 at the back. A
      # number gives 64 bits, in the order of NumPy's unpackbits: the lowest byte first, and in a byte the highest bit
      # first.
      number_index, bit = divmod(num_removed[index], 64)
      byte = draw(stream_keys[index], number_index) >> (8 * (bit // 8)) & 255
      is_front = byte >> (7 - bit % 8) & 1 == 1
      segments[index].pop(0 if is_front else -1)
      num_removed[index] += 1
    return segments[0], segments[1]

  def instances(self, document: int, key: int) -> list[Pair]:
    """ALBERT's and BERT's instances: chunks of sentences up to a target length, cut into two segments."""
    rules = self.rules
    pairs: list[Pair] = []
    remaining = [list(sentence) for sentence in self.texts[document]]
    while self.num_words(remaining) >= rules.min_words:
      numbers = self.draw_numbers(key, step=len(pairs))
      target = self.target_length(numbers)
      num_sentences = self.chunk_size(remaining, target)
      chunk, remaining = remaining[:num_sentences], remaining[num_sentences:]
      tokens = [token for sentence in chunk for token in sentence]
      if rules.sentence_prediction == NONE:
        pairs.append((*self.truncate(tokens, [], numbers[INSTANCE]), 0))
        continue
      size_a = self.first_segment_size(chunk, numbers[SPLIT])
      a, b, label = tokens[:size_a], tokens[size_a:], int(to_unit_float(numbers[LABEL]) < 0.5)
      if label and rules.sentence_prediction == SOP:
        a, b = b, a
      elif label:
        b = self.random_segment(document, target - len(a), numbers)
        # The tokens that were replaced go back to the remaining sentences of the document.
        replaced = [[token for token in sentence if token >= tokens[size_a]] for sentence in chunk]
        remaining = [sentence for sentence in replaced if sentence] + remaining
      pairs.append((*self.truncate(a, b, numbers[INSTANCE]), label))
    return pairs

  def sentence_pairs(self, document: int, key: int) -> list[Pair]:
    """RoBERTa's sentence pairs: the next two sentences, or the next one and a random one."""
    remaining = list(self.texts[document])
    pairs: list[Pair] = []
    last_used: list[int] = []  # the sentence before the remaining ones
    while remaining:
      numbers = self.draw_numbers(key, step=len(pairs))
      label = int(to_unit_float(numbers[LABEL]) < 0.5)
      if label and self.rules.sentence_prediction == NSP:
        a, b = remaining[0], self.random_segment(document, 1, numbers)
        last_used, remaining = remaining[0], remaining[1:]
      elif len(remaining) > 1:
        a, b = remaining[:2]
        last_used, remaining = remaining[1], remaining[2:]
      elif last_used:  # the last sentence comes after a sentence that was used before
        a, b = last_used, remaining[0]
        remaining = []
      else:  # the document has one sentence, which is split
        size_a = self.first_segment_size(remaining, numbers[SPLIT])
        a, b = remaining[0][:size_a], remaining[0][size_a:]
        remaining = []
      if label and self.rules.sentence_prediction == SOP:
        a, b = b, a
      pairs.append((*self.truncate(a, b, numbers[INSTANCE]), label))
    return pairs

  def whole_sentences(self, sentences: list[list[int]], separators: list[list[int]], key: int) -> list[Pair]:
    """RoBERTa's full sentences: as many as fit into the target length, without separators at the ends."""
    remaining = list(sentences)
    pairs: list[Pair] = []
    while remaining:
      numbers = self.draw_numbers(key, step=len(pairs))
      target = self.target_length(numbers)
      if remaining[0] in separators:
        remaining.pop(0)
      chunk = [remaining.pop(0)]
      while remaining and sum(map(len, [*chunk, remaining[0]])) <= target:
        chunk.append(remaining.pop(0))
      if chunk[-1] in separators:
        chunk.pop()
      tokens = [token for sentence in chunk for token in sentence]
      pairs.append((*self.truncate(tokens, [], numbers[INSTANCE]), 0))
    return pairs
