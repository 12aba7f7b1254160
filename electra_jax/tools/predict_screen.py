"""Answers of a run on the screen: in colour on a terminal, with brackets elsewhere."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from electra_jax.inference.pretraining_heads import SentenceAnswer, TokenCandidate, TokenScore

COLUMN = 10  # width of the line names


class Screen(NamedTuple):
  """How answers are shown."""

  console: Console
  threshold: float  # probability from which a word counts as replaced

  @property
  def brackets(self) -> bool:
    """Whether words are marked with brackets, for lack of colours."""
    return not self.console.is_terminal or self.console.no_color

  def line(self, name: str, text: Text) -> None:
    """Prints one named line; the terminal wraps it."""
    self.console.print(Text.assemble((f"  {name:{COLUMN}}", "dim"), text), soft_wrap=True)

  def judged(self, text: str, words: Sequence[TokenScore]) -> Text:
    """The text with its suspicious words marked."""
    shown, copied = Text(), 0
    for start, end, probability in words:
      shown.append(text[copied:start])
      word, copied = text[start:end], end
      if probability >= self.threshold and self.brackets:
        shown.append(f"[{word} {probability:.0%}]")
      elif probability >= self.threshold:
        shown.append(word, style="bold red").append(f" {probability:.0%}", style="dim red")
      else:
        shown.append(word, style="yellow" if probability >= self.threshold / 2 else "")
    return shown.append(text[copied:])


def show(answers: Sequence[SentenceAnswer], screen: Screen) -> None:
  """Prints the answers one below the other, then what the marks mean."""
  for answer in answers:
    sentence = Text(answer.sentence.text, style="bold")
    for position in answer.sentence.masks:
      sentence.stylize("cyan", *answer.sentence.offsets[position])
    screen.console.print(sentence, soft_wrap=True)
    for number, (position, candidates) in enumerate(zip(answer.sentence.masks, answer.candidates), 1):
      show_candidates(f"mask {number}" if len(answer.candidates) > 1 else "mask", position, candidates, screen,
                      answer.combined[number - 1] if answer.combined else ())
    if answer.candidates:
      screen.line("filled", Text(answer.filled.text))
    if answer.words is not None:
      screen.line("judged", screen.judged(answer.filled.text, answer.words))
      show_most_suspicious(answer.filled.text, answer.words, screen)
    screen.console.print()
  if any(answer.combined for answer in answers):
    screen.console.print(Text("Right of the bars: generator and discriminator together (ELECTRA Appendix E), as shares "
                              "of the data that need not add up to 100%.", style="dim"), soft_wrap=True)
  if any(answer.words is not None for answer in answers):
    screen.console.print(legend(screen), soft_wrap=True)


def show_candidates(name: str, position: int, candidates: Sequence[TokenCandidate], screen: Screen,
                    combined: Sequence[TokenCandidate] = ()) -> None:
  """Prints the table of one mask: rank, token, probability, a bar of that length; to the right `combined`'s ranking."""
  shown, right = [], []
  for those, texts in ((candidates, shown), (combined, right)):
    for candidate in those:
      glued = candidate.text[:1].isalnum() and position > 1  # continues the word before
      texts.append("…" * glued + candidate.text.strip() or repr(candidate.text))
  width, right_width = max(map(len, shown)), max(map(len, right), default=0)
  for rank, (token, candidate) in enumerate(zip(shown, candidates), 1):
    row = Text(f"{rank}  ").append(f"{token:{width}}", style="green" if rank == 1 else "")
    row.append(f"  {candidate.probability:6.1%}  ").append("█" * round(20 * candidate.probability), style="cyan")
    if rank <= len(combined):
      row.pad_right(8 + width + 10 + 20 - len(row))
      row.append(f"{right[rank - 1]:{right_width}}", style="green" if rank == 1 else "")
      row.append(f"  {combined[rank - 1].probability:6.1%}")
    row.rstrip()
    screen.line(name if rank == 1 else "", row)


def show_most_suspicious(text: str, words: Sequence[TokenScore], screen: Screen) -> None:
  """If no word reaches the threshold, prints which one comes closest."""
  if words and (most := max(words, key=lambda word: word.probability)).probability < screen.threshold:
    screen.line("", Text(f"nothing reaches {screen.threshold:.0%}; closest: {text[most.start:most.end]} "
                         f"{most.probability:.0%}", style="dim"))


def legend(screen: Screen) -> Text:
  """A line that explains the marks."""
  limit = screen.threshold
  text = Text("Legend: ", style="dim")
  if screen.brackets:
    text.append(f"[word 87%] = looks replaced, with a probability of 87% (marked from {limit:.0%}, --threshold)")
  else:
    text.append("word 87%", style="bold red not dim").append(f" looks replaced (from {limit:.0%}, --threshold), ")
    text.append("word", style="yellow not dim").append(f" is doubtful (from {limit / 2:.0%})")
  return text.append(". A word counts as its most suspicious piece.")
