"""Samples of a report: what a run says about a few held-out texts, as HTML."""

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data import sentences, shards
from electra_jax.data.shards import corpus
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.tools import report_page
from electra_jax.tools.report_page import escape

LONGEST = 48  # tokens of a sample
LEGEND = "Dashed: a word that was hidden. Below: what the model would put there."


def of_pretraining(workdir: str, config: ConfigDict, number: int) -> str:
  """Held-out texts with a word hidden, and what the masked LM puts there.

  Raises:
    UserError: there is no checkpoint or no shard, or one cannot be read.
  """
  run = pretraining_heads.load(workdir)
  texts = _heldout_texts(workdir, config, run.tokenizer, number)
  cards = [_hidden_word(run, text, index) for index, text in enumerate(texts)]
  return (report_page.paragraph(f"Checkpoint of step {run.step:,}. {LEGEND}", dim=True)
          + report_page.cards([body for body in cards if body]))


def _heldout_texts(workdir: str, config: ConfigDict, tokenizer: Tokenizer, number: int) -> list[str]:
  """Beginnings of held-out examples, spread evenly over all of them."""
  examples = shards.open_shards(corpus.shards_directory(config.data, workdir), "heldout", config.data, tokenizer)
  if not len(examples):
    return []
  ids, num_tokens, _ = examples.read(np.unique(np.linspace(0, len(examples) - 1, number).astype(int)))
  length = min(LONGEST, config.data.sequence_length - 4)  # encoded again, the text may take a few more tokens
  texts = []
  for row, count in zip(ids.tolist(), num_tokens.tolist()):
    ordinary = [i for i in row[:min(count, length)] if i not in tokenizer.special_ids]
    text = "".join(sentences.piece_texts(tokenizer, ordinary))
    texts.append(" ".join(text.rstrip("\N{REPLACEMENT CHARACTER}").split()))  # left of a character that was cut
  return [text for text in texts if pretraining_heads.WORD.search(text)]


def _hidden_word(run, text: str, index: int) -> str:
  """The text with one of its longer words hidden, and the likeliest words in its place; "" if it cannot be asked."""
  words = list(pretraining_heads.WORD.finditer(text))
  words = [word for word in words if len(word.group()) > 3] or words
  if run.network.mlm_logits is None or not words:
    return ""
  word = words[(7 * index + len(words) // 2) % len(words)]
  try:
    candidates = pretraining_heads.fill_mask(run, [f"{text[:word.start()]}[MASK]{text[word.end():]}"])[0][0]
  except UserError:  # too long now
    return ""
  rows = "".join(f"<tr><td>{escape(token.strip() or repr(token))}</td><td class=n>{probability:.1%}</td>"
                 f'<td><i style="width: {8 * probability:.2f}rem"></i></td></tr>'
                 for token, _, probability in candidates)
  return (f'<p>{escape(text[:word.start()])}<span class="hidden">{escape(word.group())}</span>'
          f'{escape(text[word.end():])}</p><table class="candidates">{rows}</table>')
