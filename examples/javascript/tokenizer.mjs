// ALBERT's tokenizer in plain JavaScript, for Node.js 20 or later. It needs no packages and gives the ids of
// albert.Tokenizer in Python: normalization, SentencePiece's unigram model, and the rule that a comma after a digit is
// a token of its own. The tests compare the ids of both on 10,000 texts in all scripts.

import { readFileSync } from "node:fs";

export const [PAD, UNK, CLS, SEP] = [0, 1, 2, 3];
const WORD_START = "▁"; // U+2581: how SentencePiece writes a space
const [NORMAL, USER_DEFINED] = [1, 4]; // types of pieces that can match text
const UNIGRAM = 1; // a type of models
// Field numbers in SentencePiece's protocol buffers, sentencepiece_model.proto.
const MODEL = { pieces: 1, trainerSpec: 2, normalizerSpec: 3 };
const PIECE = { text: 1, score: 2, type: 3 };
const TRAINER = { modelType: 3, byteFallback: 35 };
const NORMALIZER = { characterMap: 2, addSpaceBefore: 3, removeExtraSpaces: 4, escapeSpaces: 5 };

// The whitespace of Python's str.split(), which differs from \s.
const WHITESPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;
// The characters for which Python's str.isdigit() is true, after NFKD.
const DIGIT = "\\p{Nd}\u1369-\u1371\u19da\u24f5-\u24fd\u24ff\u2776-\u277e\u2780-\u2788\u278a-\u2792\u{10a40}-\u{10a43}" +
  "\u{10e60}-\u{10e68}\u{11052}-\u{1105a}";
// Characters newer than Unicode 13 that have a decomposition, a combining class or a case. They are never changed, so
// that the ids do not depend on the Unicode version of Node.js.
const NEWER = "\u0888-\u089f\u08c9-\u08d2\u0c3c\u0ece\u1715\u180f\u1ac1-\u1aeb\u1c89\u1c8a\u1dfa\u2c2f\u2c5f\ua7c0" +
  "\ua7c1\ua7cb-\ua7f4\ufbc2\u{10570}-\u{105e4}\u{10780}-\u{107ba}\u{10d40}-\u{10d85}\u{10ec5}-\u{10eff}" +
  "\u{10f82}-\u{10f85}\u{11070}-\u{11074}\u{110c2}\u{11241}\u{11383}-\u{113e2}\u{116d0}-\u{116e3}\u{11b60}-\u{11bf9}" +
  "\u{11dd9}-\u{11de9}\u{11f00}-\u{11f5a}\u{13439}-\u{13455}\u{1611e}-\u{16139}\u{16ac0}-\u{16ac9}\u{16d40}-\u{16d79}" +
  "\u{16ea0}-\u{16ed3}\u{16ff2}\u{16ff3}\u{1aff0}-\u{1affe}\u{1ccd6}-\u{1cf46}\u{1df00}-\u{1df2a}\u{1e030}-\u{1e08f}" +
  "\u{1e2ae}\u{1e4eb}-\u{1e6ff}";
const IS_NEWER = new RegExp(`[${NEWER}]`, "u");
const SPLIT_AT_NEWER = new RegExp(`([${NEWER}]+)`, "u");
const ENDS_IN_DIGIT_COMMA = new RegExp(`(?![${NEWER}])[${DIGIT}],$`, "u");

// Whether a character has a combining class other than 0. NFD sorts combining characters by their classes, so it then
// moves the character behind a mark of class 1 (U+0334), or moves a mark of class 240 (U+0345) behind the character.
const isCombining = (c) =>
  (c + "\u0334").normalize("NFD") !== c + "\u0334" || ("\u0345" + c).normalize("NFD") !== "\u0345" + c;

const decompositions = new Map(); // of the characters seen so far

function decompose(character) {
  let text = decompositions.get(character);
  if (text === undefined) {
    const isKept = (c) => !isCombining(c);
    text = IS_NEWER.test(character) ? character : Array.from(character.normalize("NFKD")).filter(isKept).join("");
    decompositions.set(character, text);
  }
  return text;
}

/** Normalizes a text: single spaces, NFKD without combining characters (unless accents are kept), lower case. */
export function normalize(text, { doLowerCase = true, convertQuotes = false, keepAccents = false } = {}) {
  text = text.toWellFormed().split(WHITESPACE).filter(Boolean).join(" ");
  if (convertQuotes) text = text.replaceAll("``", '"').replaceAll("''", '"');
  if (!keepAccents) text = text.replace(/[^\x00-\x7f]/gu, decompose);
  if (!doLowerCase) return text;
  return text.split(SPLIT_AT_NEWER).map((part, i) => (i % 2 ? part : part.toLowerCase())).join("");
}

/** Reads the fields of a protocol buffer: field number -> array of values (bytes, or numbers for varints). */
function readMessage(bytes) {
  const fields = new Map();
  let position = 0;
  const varint = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[position++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  };
  while (position < bytes.length) {
    const key = varint(), wireType = key & 7;
    let value;
    if (wireType === 0) value = varint();
    else {
      const size = wireType === 2 ? varint() : wireType === 1 ? 8 : 4;
      value = bytes.subarray(position, (position += size));
    }
    const number = key >>> 3;
    fields.has(number) ? fields.get(number).push(value) : fields.set(number, [value]);
  }
  return fields;
}

/** Rounds a score to a multiple of 2^-13 (1 / 8192), half to even, as albert.tokenization.sentence_piece does. */
function roundScore(score) {
  const scaled = score * 8192, floor = Math.floor(scaled);
  const isUp = scaled - floor > 0.5 || (scaled - floor === 0.5 && floor % 2 !== 0);
  return (floor + isUp) / 8192;
}

/** SentencePiece's own normalization: replaces the longest matching prefix, which a double-array trie finds. */
class CharacterMap {
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const trieBytes = view.getUint32(0, true);
    this.units = Uint32Array.from({ length: trieBytes / 4 }, (_, i) => view.getUint32(4 + 4 * i, true));
    this.replacements = bytes.subarray(4 + trieBytes); // texts, each with a zero byte after it
  }

  /** Returns the normalized text. */
  apply(text) {
    // A unit of the trie (Darts-clone): bits 0 to 7 are the byte that leads to it; bit 8 is set if a key ends here;
    // bits 10 to 30, shifted by 8 if bit 9 is set, are the offset of its children. A unit with bit 31 holds the value
    // of a key.
    const input = Buffer.from(text, "utf8"), output = [];
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    for (let start = 0; start < input.length; ) {
      let node = offset(this.units[0]), end = 0, replacementStart = 0;
      for (let i = start; i < input.length; i++) {
        node ^= input[i];
        const unit = this.units[node];
        if ((unit & 0x800000ff) >>> 0 !== input[i]) break;
        node ^= offset(unit);
        if (unit & 256) [end, replacementStart] = [i + 1, this.units[node] & 0x7fffffff]; // a key of the trie ends here
      }
      if (end) {
        const replacementEnd = this.replacements.indexOf(0, replacementStart);
        output.push(this.replacements.subarray(replacementStart, replacementEnd));
      } else {
        end = start + 1;
        while ((input[end] & 0xc0) === 0x80) end++; // to the end of the character
        output.push(input.subarray(start, end));
      }
      start = end;
    }
    return Buffer.concat(output).toString("utf8");
  }
}

export class Tokenizer {
  /** Reads spiece.model. The options must be those of the model's assets.extra/servable.json. */
  constructor(modelFile, options = {}) {
    this.options = options;
    const model = readMessage(readFileSync(modelFile));
    const trainer = readMessage(model.get(MODEL.trainerSpec)?.[0] ?? []);
    const normalizer = readMessage(model.get(MODEL.normalizerSpec)?.[0] ?? []);
    const isUnigram = (trainer.get(TRAINER.modelType)?.[0] ?? UNIGRAM) === UNIGRAM;
    const spaceSwitches = [NORMALIZER.addSpaceBefore, NORMALIZER.removeExtraSpaces, NORMALIZER.escapeSpaces];
    const usesDefaultSpaces = spaceSwitches.every((number) => (normalizer.get(number)?.[0] ?? 1) === 1); // 1: true
    if (!isUnigram || !usesDefaultSpaces || trainer.get(TRAINER.byteFallback)?.[0]) {
      throw new Error(`${modelFile}: not a unigram model of the kind that data_prep/train_vocab.py trains`);
    }
    const map = normalizer.get(NORMALIZER.characterMap)?.[0];
    this.characterMap = map?.length ? new CharacterMap(map) : null;
    const pieces = model.get(MODEL.pieces).map((bytes, id) => {
      const fields = readMessage(bytes), score = fields.get(PIECE.score)?.[0];
      const text = fields.get(PIECE.text)[0].toString("utf8");
      return { id, text, score: score ? score.readFloatLE(0) : 0, type: fields.get(PIECE.type)?.[0] ?? NORMAL };
    });
    for (const piece of pieces) {
      if (piece.type === USER_DEFINED) { // its score is not stored; this is SentencePiece's formula
        if (piece.text.includes(WORD_START) || (this.characterMap?.apply(piece.text) ?? piece.text) !== piece.text) {
          throw new Error(`${modelFile}: normalization changes the user-defined symbol ${JSON.stringify(piece.text)}`);
        }
        piece.score = 0.1 * (Buffer.byteLength(piece.text) - 1);
        piece.type = NORMAL;
      }
      piece.score = roundScore(piece.score);
    }
    this.texts = pieces.map((piece) => piece.text); // id -> piece
    const matching = pieces.filter((piece) => piece.type === NORMAL);
    this.pieces = new Map(matching.map((piece) => [piece.text, piece])); // the pieces that can match text
    this.maxPieceLength = matching.reduce((length, piece) => Math.max(length, Array.from(piece.text).length), 1);
    this.unknownScore = matching.reduce((score, piece) => Math.min(score, piece.score), Infinity) - 10;
    // As in Python, a long text is encoded in parts, in which the sums of scores are exact.
    const lowestOfAll = pieces.reduce((score, piece) => Math.min(score, piece.score), 0);
    // Sums of rounded scores are exact up to 2048. No score is below that of an unknown character, the lowest minus 10.
    const partLength = Math.max(1, Math.floor(2048 / (10 - lowestOfAll)) - 1);
    const noneContainsSpace = this.texts.every((text) => text.lastIndexOf(WORD_START) <= 0); // no ▁ after the first character
    const wordsAreIndependent = this.texts.includes(WORD_START) && noneContainsSpace;
    // A part does not end with a ▁ of the text, unless the text does.
    const firstWords = `[^ ].{0,${partLength - 1}}(?:(?<![▁ ])(?= )|$)`, longWord = "[^ ]+(?:(?<=▁) +[^ ]+)*";
    this.partPattern = wordsAreIndependent ? new RegExp(`${firstWords}|${longWord}`, "gsu") : /.+/gsu;
  }

  /** Returns the ids of a text, without [CLS] and [SEP]. */
  encode(text) {
    const ids = [];
    for (const part of normalize(text, this.options).match(this.partPattern) ?? []) {
      for (const surface of this.segment(part)) {
        for (const token of this.splitComma(surface)) ids.push(this.pieces.get(token)?.id ?? UNK);
      }
    }
    return ids;
  }

  /** The comma rule: a piece that ends in a digit and a comma is encoded without the comma, then comes the comma. */
  splitComma(surface) {
    if (!ENDS_IN_DIGIT_COMMA.test(surface)) return [surface];
    const surfaces = this.segment(surface.slice(0, -1).replaceAll(WORD_START, ""));
    if (!surface.startsWith(WORD_START) && surfaces[0].startsWith(WORD_START)) {
      surfaces[0] = surfaces[0].slice(1);
      if (!surfaces[0]) surfaces.shift();
    }
    return [...surfaces, ","];
  }

  /** Finds the most probable pieces of a text (Viterbi). Unknown characters in a row become one piece. */
  segment(text) {
    let written = (this.characterMap ? this.characterMap.apply(text) : text).replace(/ +/g, " ").replace(/^ /, "");
    written = (WORD_START + written).replaceAll(" ", WORD_START).replace(/▁+$/, "");
    const characters = Array.from(written), count = characters.length;
    const best = new Float32Array(count + 1); // score of the best pieces up to each position, float32 as in Python
    const start = new Int32Array(count + 1).fill(-1), isUnknown = new Uint8Array(count + 1);
    const propose = (begin, end, score, unknown) => {
      const total = Math.fround(best[begin] + score);
      if (start[end] < 0 || total > best[end]) [best[end], start[end], isUnknown[end]] = [total, begin, unknown];
    };
    for (let begin = 0; begin < count; begin++) {
      let piece = "";
      for (let end = begin + 1; end <= Math.min(count, begin + this.maxPieceLength); end++) {
        piece += characters[end - 1];
        const match = this.pieces.get(piece);
        if (match) propose(begin, end, match.score, 0);
        else if (end === begin + 1) propose(begin, end, this.unknownScore, 1);
      }
    }
    const surfaces = [];
    let wasUnknown = false;
    for (let end = count; end > 0; end = start[end]) {
      const surface = characters.slice(start[end], end).join("");
      if (isUnknown[end] && wasUnknown) surfaces[surfaces.length - 1] = surface + surfaces.at(-1);
      else surfaces.push(surface);
      wasUnknown = isUnknown[end] === 1;
    }
    return surfaces.reverse();
  }
}
