"""Samples of a report: what a run says about a few texts it was not trained on, as HTML."""

import os
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from electra_jax import tasks
from electra_jax.data import sentences, shards, tokenizers
from electra_jax.data.shards import corpus
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.finetuning import ensembles, predictions, results
from electra_jax.inference import pretraining_heads
from electra_jax.tasks import squad
from electra_jax.tools import report_page
from electra_jax.tools.predict_screen import was_drawn
from electra_jax.tools.report_page import escape

LONGEST = 48  # tokens of a sample
# Where no held-out text can be read.
OWN_TEXTS = ("The name of the file is given by the user.", "The weather was cold, and the children stayed at home.",
             "This function returns a list of the values.")
LEGEND = ("Dashed: a word that was hidden, and what the model would put there. Coloured: the more, the likelier the "
          "discriminator takes the word for a replacement. Underlined: the generator did replace it.")
TEXT_CHARACTERS = 400  # shown of each text of a labelled example
SCORED_EXAMPLES = 300  # of the dev set, in its order, from which right and wrong ones are shown


def of_pretraining(workdir: str, config: ConfigDict, number: int) -> str:
  """Held-out texts with a word hidden and, of an ELECTRA, with words replaced.

  Raises:
    UserError: there is no checkpoint, or it cannot be read.
  """
  run = pretraining_heads.load(workdir)
  texts = _heldout_texts(workdir, config, run.tokenizer, number) or list(OWN_TEXTS[:number])
  whole = [sentence for sentence in (_encoded(run, text) for text in texts) if sentence]
  cards = [_hidden_word(run, sentence.text, index) for index, sentence in enumerate(whole)]
  if whole and run.network.rtd_logits is not None and run.network.mlm_logits is not None:
    corrupted = pretraining_heads.corrupt_sentences(run, whole, seed=0)
    cards = [first + _corrupted(corruption) for first, corruption in zip(cards, corrupted)]
  return (report_page.paragraph(f"Checkpoint of step {run.step:,}. {LEGEND}", dim=True)
          + report_page.cards([body for body in cards if body]))


def _heldout_texts(workdir: str, config: ConfigDict, tokenizer: Tokenizer, number: int) -> list[str]:
  """Beginnings of held-out examples, evenly over all of them; [] where the shards are not there any more."""
  try:
    examples = shards.open_shards(corpus.shards_directory(config.data, workdir), "heldout", config.data, tokenizer)
  except UserError:
    return []
  if not len(examples):
    return []
  ids, num_tokens, _ = examples.read(np.unique(np.linspace(0, len(examples) - 1, number).astype(int)))
  length = min(LONGEST, config.data.sequence_length - 4)  # the same text may take some more tokens when read again
  texts = []
  for row, count in zip(ids.tolist(), num_tokens.tolist()):
    ordinary = [i for i in row[:min(count, length)] if i not in tokenizer.special_ids]
    text = "".join(sentences.piece_texts(tokenizer, ordinary))
    texts.append(" ".join(text.rstrip("\N{REPLACEMENT CHARACTER}").split()))  # of a character that is cut
  return [text for text in texts if pretraining_heads.WORD.search(text)]


def _encoded(run, text: str) -> sentences.Sentence | None:
  """The text as the run reads it; None: it has become too long or empty, as a text read again may."""
  try:
    return pretraining_heads.encode(run, text)
  except UserError:
    return None


def _hidden_word(run, text: str, index: int) -> str:
  """The text with one of its longer words hidden, and the likeliest words in its place."""
  if run.network.mlm_logits is None:
    return ""
  words = [word for word in pretraining_heads.WORD.finditer(text) if len(word.group()) > 3] or list(
    pretraining_heads.WORD.finditer(text))
  word = words[(7 * index + len(words) // 2) % len(words)]
  try:
    candidates = pretraining_heads.fill_mask(run, [f"{text[:word.start()]}[MASK]{text[word.end():]}"])[0][0]
  except UserError:  # a text that has become too long
    return ""
  rows = "".join(f"<tr><td>{escape(token.strip() or repr(token))}</td><td class=n>{probability:.1%}</td>"
                 f'<td><i style="width: {8 * probability:.2f}rem"></i></td></tr>'
                 for token, _, probability in candidates)
  return (f'<h4>a word hidden</h4><p>{escape(text[:word.start()])}<span class="hidden">{escape(word.group())}</span>'
          f'{escape(text[word.end():])}</p><table class="candidates">{rows}</table>')


def _corrupted(corruption: pretraining_heads.CorruptedSentence) -> str:
  """The text as the generator left it and the discriminator sees it."""
  text, shown, copied = corruption.sentence.text, "", 0
  for start, end, probability in corruption.words:
    drawn = " drawn" * was_drawn(start, end, corruption.replacements)
    shown += (f'{escape(text[copied:start])}<span class="word{drawn}" style="--share: {probability:.2f}" '
              f'title="replaced: {probability:.0%}">{escape(text[start:end])}</span>')
    copied = end
  changes = ", ".join(f"{original} → {drawn} ({probability:.0%})"
                      for original, drawn, _, _, probability in corruption.replacements)
  note = escape(changes or "The generator drew the same words.")
  return f"<h4>words replaced</h4><p>{shown}{escape(text[copied:])}</p><small>{note}</small>"


def of_fine_tuning(workdir: str, config: ConfigDict, number: int) -> str:
  """Dev examples that the first finished seed answers rightly, and as many that it does not.

  Raises:
    UserError: no seed is finished, or the data are not there any more.
  """
  seeds = results.finished_seeds(workdir)
  if not seeds:
    raise UserError("There are no answers yet", got="no finished seed", allowed="at least one", fix="let it finish")
  task = tasks.make(config.task)
  split = task.splits[1]
  examples = task.read(split)[:SCORED_EXAMPLES]
  tokenizer = tokenizers.load_tokenizer(os.path.join(workdir, "tokenizer"), config.data.tokenizer)
  features = predictions.to_split(task, examples, tokenizer, config.task.max_length).features
  outputs = {name: x[:len(features)] for name, x in ensembles.load_outputs(workdir, seeds[0], split).items()}
  answers = task.decode(outputs, features, examples)
  rows = [(example, in_words(answer)[0], in_words(example.label)) for example, answer in zip(examples, answers)]
  wrong = [] if task.head == "regression" else [row for row in rows if row[1] not in row[2]][:number // 2]
  chosen = wrong + [row for row in rows if row[1] in row[2] or task.head == "regression"][:number - len(wrong)]
  note = f"Seed {seeds[0]} on the {split} split: some wrong and some right answers of the first {len(examples):,}."
  return report_page.paragraph(note, dim=True) + report_page.cards(
    [_texts(example) + _verdict(answer, labels, task.head) for example, answer, labels in chosen])


def _texts(example: tasks.Example) -> str:
  shown = [" ".join(text) if isinstance(text, tuple) else str(text) for text in example.texts]
  return "".join(f"<p>{escape(text[:TEXT_CHARACTERS] + '…' * (len(text) > TEXT_CHARACTERS))}</p>" for text in shown)


def _verdict(answer: str, labels: Sequence[str], head: str) -> str:
  style = "" if head == "regression" else "right" if answer in labels else "wrong"
  truth = " | ".join(dict.fromkeys(label or "no answer" for label in labels))
  return f'<small>says <b class="{style}">{escape(answer or "no answer")}</b>, data: {escape(truth)}</small>'


def in_words(value: object) -> tuple[str, ...]:
  """A label or an answer as text; several where a question of SQuAD has several right answers.

  >>> in_words("1"), in_words(2.5), in_words(["B-PER", "O"]), in_words(None)
  (('1',), ('2.50',), ('B-PER O',), ('',))
  """
  if value is None:
    return ("",)
  if isinstance(value, squad.Reference):
    return value.texts or ("",)
  if isinstance(value, squad.Answer):
    answered = value.candidates and value.null_odds <= 0  # a probability of "no answer" of up to one half
    return (value.candidates[0].text if answered else "",)
  if isinstance(value, float):
    return (f"{value:.2f}",)
  return (" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value),)
