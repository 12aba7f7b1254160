"""Tokenizer files for transformers: tokenizer.json and its companions, with which AutoTokenizer gives our ids.

Special tokens are registered, so that "[MASK]" in a text is the mask, as transformers' pipelines expect and as in our
`Tokenizer.encode`. `AutoTokenizer.from_pretrained(..., split_special_tokens=True)` reads it as plain text, as we do in
a corpus.
"""

import os

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Library

from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.files import write_json
from electra_jax.tasks.features import num_separators


def write(folder: str, tokenizer: Tokenizer, *, max_tokens: int, has_token_types: bool) -> None:
  """tokenizer.json, tokenizer_config.json, special_tokens_map.json, and the files that our own loader reads.

  Ids are the same for any text; for SentencePiece see `sentencepiece_library.make_library`.

  Args:
    max_tokens: longest input, special tokens included.
    has_token_types: whether the second text of a pair is of type 1; a model with a single type cannot look that up.

  Raises:
    OSError: the disk refuses.
  """
  with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
    library = make_library(tokenizer, has_token_types)
    file.write(library.to_str(pretty=True))
  roles = special_tokens(tokenizer)
  mask = library.get_added_tokens_decoder().get(tokenizer.mask_id, AddedToken(roles["mask_token"], special=True))
  inputs = ["input_ids", *(["token_type_ids"] if has_token_types else []), "attention_mask"]
  write_json(os.path.join(folder, "tokenizer_config.json"), roles | {
    "mask_token": {"__type": "AddedToken", **mask.__getstate__()}, "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": max_tokens,
    "model_input_names": inputs, "clean_up_tokenization_spaces": False, "do_lower_case": tokenizer.lowercase})
  write_json(os.path.join(folder, "special_tokens_map.json"), roles)
  # With the defining files and our facts next to them, importing the folder gives this very tokenizer.
  for name, content in tokenizer.files.items():
    with open(os.path.join(folder, name), "wb") as file:
      file.write(content)
  write_json(os.path.join(folder, "tokenizer_facts.json"), tokenizer.facts())


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
  """{"pad_token": "[PAD]", ...}: the names of the special roles."""
  ids = {"pad_token": tokenizer.pad_id, "unk_token": tokenizer.unk_id, "cls_token": tokenizer.cls_id,
         "sep_token": tokenizer.sep_id, "mask_token": tokenizer.mask_id}
  return {role: tokenizer.tokens([i])[0] for role, i in ids.items()}


def make_library(tokenizer: Tokenizer, has_token_types: bool = True) -> Library:
  """The tokenizer as an object of the `tokenizers` library: [CLS] text [SEP], or a pair as by `features.joined`."""
  roles = special_tokens(tokenizer)
  library = Library.from_str(tokenizer.reader.to_str())
  cls, sep, second = roles["cls_token"], roles["sep_token"], int(has_token_types)
  between = " ".join([sep, f"{sep}:{second}"][:num_separators(tokenizer)])
  library.post_processor = processors.TemplateProcessing(
    single=f"{cls} $A {sep}", pair=f"{cls} $A {between} $B:{second} {sep}:{second}",
    special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)])
  return library
