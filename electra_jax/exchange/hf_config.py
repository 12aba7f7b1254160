"""config.json: Hugging Face's description of a model, made from ours and turned into ours."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError, named
from electra_jax.exchange import mapping

# Keys that config.model and config.json share.
SAME = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
        "type_vocab_size", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps",
        "initializer_range")
# transformers' defaults for keys that config.json may omit; layer_norm_eps is 1e-12 in all three families.
OPTIONAL = {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
            "layer_norm_eps": 1e-12, "initializer_range": 0.02, "type_vocab_size": 2}
# Valid values: (type, predicate, description).
COUNT = (int, lambda n: n >= 1, "a whole number of at least 1")
RATE = ((int, float), lambda x: 0 <= x < 1, "a number from 0 to below 1")
VALUES = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                        "max_position_embeddings", "type_vocab_size", "embedding_size"), COUNT) | {
  "hidden_dropout_prob": RATE, "attention_probs_dropout_prob": RATE, "layer_norm_eps": RATE,
  "initializer_range": RATE, "pad_token_id": (int, lambda n: n >= 0, "a whole number of at least 0"),
  "architectures": (list, lambda names: all(isinstance(name, str) for name in names), "a list of names"),
  "id2label": (dict, lambda names: all(key.isdecimal() for key in names), "an object with numbers as keys"),
  "problem_type": (str, lambda name: True, "text")}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}  # theirs -> ours

# family -> our head -> transformers' class. None: an encoder without a head.
ARCHITECTURES = {
  family: {**pretraining, "classification_head": f"{name}ForSequenceClassification",
           "span_head": f"{name}ForQuestionAnswering", "multiple_choice_head": f"{name}ForMultipleChoice",
           "tagging_head": f"{name}ForTokenClassification", None: f"{name}Model"}
  for family, name, pretraining in (
    ("bert", "Bert", {"nsp_head": "BertForPreTraining", "mlm_head": "BertForMaskedLM"}),
    ("roberta", "Roberta", {"mlm_head": "RobertaForMaskedLM"}),
    ("electra", "Electra", {"rtd_head": "ElectraForPreTraining", "mlm_head": "ElectraForMaskedLM"}))
}
HEAD_SIZE = 64  # width of an attention head in every published BERT, RoBERTa and ELECTRA; tensors do not show it
FINE_TUNING = ("classification_head", "span_head", "multiple_choice_head", "tagging_head")


def read(path: str) -> dict:
  """A model's config.json as it stands.

  Raises:
    UserError: there is none, or it is no JSON object.
  """
  try:
    with open(path, "rb") as file:
      return dict(json.load(file))  # from bytes, so that a byte order mark is skipped
  except (OSError, ValueError, TypeError) as error:
    raise UserError("The model has no config.json that can be read", got=f"{path}: {error}",
                    allowed="the JSON file next to its weights", fix="download the whole model again") from error


def heads_of(config: dict, tensors: Iterable[str]) -> tuple[str, ...]:
  """A network's heads by our names. Fine-tuning heads share tensor names, so the class in config.json decides."""
  family, classes = config["model_type"], config.get("architectures") or ()
  return tuple(head for head in mapping.heads_in(tensors, family)
               if head not in FINE_TUNING or ARCHITECTURES[family][head] in classes)


def missing_of_heads(config: dict, tensors: Iterable[str]) -> list[str]:
  """Tensors missing from a head that is there in part, unless its tensors all belong to complete heads.

  A pooler alone does not count as part of a head: encoders come with one.

  >>> config = {"model_type": "electra", "architectures": ["ElectraForPreTraining"]}
  >>> missing_of_heads(config, ["discriminator_predictions.dense.weight", "discriminator_predictions.dense.bias",
  ...                           "discriminator_predictions.dense_prediction.weight"])
  ['discriminator_predictions.dense_prediction.bias']
  """
  family, names = config["model_type"], set(tensors)
  rows = mapping.head_rows(family)
  explained = set().union(*(wanted for wanted in rows.values() if wanted <= names))
  expected = {head for head, name in ARCHITECTURES[family].items() if name in (config.get("architectures") or ())}
  begun = {head: {name for name in wanted & names if ".pooler." not in name} for head, wanted in rows.items()}
  broken = [head for head in rows if head in expected and begun[head] and rows[head] - names] or [
    head for head in rows if begun[head] - explained]
  # Of heads that share tensors, the one that lacks the fewest.
  return sorted(min((rows[head] - names for head in broken), key=len, default=()))


def family_of(model: dict, heads: set[str], pooler: str = "tanh") -> str:
  """The family whose classes compute a network, by its `config.model` keys and its heads.

  A RoBERTa counts positions from after the padding id; an ELECTRA has an embedding projection, a replaced-token head,
  or a GELU in the layer over [CLS] (`pooler`); anything else is a BERT.

  Raises:
    UserError: the network has features of both.
  """
  is_electra = model["embedding_size"] != model["hidden_size"] or "rtd_head" in heads or pooler == "gelu"
  if model["position_offset"]:
    if is_electra:
      raise UserError("No class of transformers computes this network",
                      got=f"model.position_offset={model['position_offset']} with "
                      + "a replaced-token head, an embedding projection or a GELU over [CLS]",
                      allowed="RoBERTa's positions without these, or position_offset=0",
                      fix="fine-tune with --config.task.pooler=tanh, or use --format=msgpack" if pooler == "gelu" else
                      "export with --format=msgpack, or train with --config.model.position_offset=0")
    return "roberta"
  return "electra" if is_electra else "bert"


def make(family: str, model: dict, heads: tuple[str, ...], tokenizer: Tokenizer,
         labels: Sequence[str] | None = None) -> dict:
  """config.json of a network.

  Args:
    model: our `config.model` keys, with a generator's own sizes.
    heads: our names; the first in the order of ARCHITECTURES decides the class.
    tokenizer: gives the vocabulary's size (padding rows are cut) and the special ids.
    labels: names of a classification or tagging head's outputs.
  """
  rows = ARCHITECTURES[family]
  head = next((head for head in rows if head in heads), None)
  config = {"architectures": [rows[head]], "model_type": family, "vocab_size": tokenizer.vocab_size,
            **{key: model[key] for key in SAME}, "pad_token_id": tokenizer.pad_id, "tie_word_embeddings": True,
            "bos_token_id": tokenizer.cls_id if family == "roberta" else None,
            "eos_token_id": tokenizer.sep_id if family == "roberta" else None,
            "classifier_dropout": None, "dtype": "float32"}
  if family == "electra":
    # The head over [CLS] has a hidden layer with GELU; multiple choice needs these four to say so.
    config |= {"embedding_size": model["embedding_size"], "summary_type": "first", "summary_use_proj": True,
               "summary_activation": "gelu", "summary_last_dropout": model["hidden_dropout_prob"]}
  if labels:
    config |= {"id2label": {str(i): label for i, label in enumerate(labels)},
               "label2id": {label: i for i, label in enumerate(labels)}}
    if "classification_head" in heads:
      config["problem_type"] = "regression" if len(labels) == 1 else "single_label_classification"
  return config


def from_shapes(family: str, tensors: Mapping[str, np.ndarray], **known: Any) -> dict:
  """config.json of an encoder, from the shapes of its tensors, then `known`; what neither shows is BERT's."""
  vocab_size, embedding_size = tensors[f"{family}.embeddings.word_embeddings.weight"].shape
  intermediate_size, hidden_size = tensors[f"{family}.encoder.layer.0.intermediate.dense.weight"].shape
  return {**OPTIONAL, "model_type": family, "vocab_size": vocab_size, "hidden_size": hidden_size,
          "intermediate_size": intermediate_size, "num_hidden_layers": mapping.num_layers(tensors),
          "num_attention_heads": max(1, hidden_size // HEAD_SIZE),
          "max_position_embeddings": len(tensors[f"{family}.embeddings.position_embeddings.weight"]),
          "type_vocab_size": len(tensors[f"{family}.embeddings.token_type_embeddings.weight"]),
          "pad_token_id": 0, **({"embedding_size": embedding_size} if family == "electra" else {}), **known}


def scores_of(config: dict, num_labels: int) -> str:
  """What transformers' pipeline applies to a classifier's logits: softmax | sigmoid (each label by itself) | none."""
  problem = config.get("problem_type")
  if problem == "regression":
    return "none"
  return "sigmoid" if problem == "multi_label_classification" or num_labels == 1 else "softmax"


def to_model(config: dict, where: str) -> dict:
  """Our `config.model` keys from a config.json; `vocab_size` is theirs, without padding.

  Raises:
    UserError: a size is missing or impossible, or the model has parts that are not supported.
  """
  family = config["model_type"]
  given: dict[str, Any] = OPTIONAL | config
  _check_values(given, where)
  missing = [key for key in ("vocab_size", *SAME) if given.get(key) is None]
  unbuilt = [f"{key}={given[key]!r}" for key, allowed in (
    ("hidden_act", (*ACTIVATIONS, None)), ("position_embedding_type", ("absolute", None)),
    ("tie_word_embeddings", (True,)), ("is_decoder", (False, None)), ("pruned_heads", ({}, None)))
    if key in given and given[key] not in allowed]
  if missing or unbuilt:
    raise UserError("config.json does not describe an encoder that is supported",
                    got=f"{where}: " + named([f"no {key}" for key in missing] + unbuilt),
                    allowed=f"{', '.join(SAME)}; hidden_act of {', '.join(ACTIVATIONS)}; absolute positions, tied "
                    "output table, every head kept", fix="use a plain BERT, RoBERTa or ELECTRA")
  model = {key: given[key] for key in SAME} | {"vocab_size": given["vocab_size"]}
  model["hidden_act"] = ACTIVATIONS[given["hidden_act"]]
  # transformers' ElectraConfig has 128 by default, whatever the hidden size.
  model["embedding_size"] = (given.get("embedding_size") or 128) if family == "electra" else given["hidden_size"]
  padding = given.get("pad_token_id")
  model["position_offset"] = (1 if padding is None else padding) + 1 if family == "roberta" else 0
  if model["hidden_size"] % model["num_attention_heads"] or (
      model["max_position_embeddings"] <= model["position_offset"]):
    keys = ("hidden_size", "num_attention_heads", "max_position_embeddings", "position_offset")
    raise UserError("The sizes in config.json do not fit each other",
                    got=f"{where}: " + ", ".join(f"{key}={model[key]}" for key in keys),
                    allowed="a hidden_size that the heads divide; in RoBERTa more positions than the padding takes",
                    fix="use the config.json that belongs to the weights")
  return model


def _check_values(given: dict, where: str) -> None:
  """Raises if a value has the wrong type or is out of range; missing ones and null are checked elsewhere."""
  faults = [f"{key}={repr(given[key])[:60]}, not {words}" for key, (kind, fits, words) in VALUES.items()
            if given.get(key) is not None and not (
              isinstance(given[key], kind) and not isinstance(given[key], bool) and fits(given[key]))]
  if faults:
    raise UserError("config.json has values that no model can have", got=f"{where}: {'; '.join(faults)}",
                    allowed="sizes and rates as numbers, as transformers writes them",
                    fix="use the config.json that belongs to the weights")
