"""Recipes by name or path, and checks of a command line's overrides, --config.KEY=VALUE, against their keys."""

import difflib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags.tuple_parser import TupleParser

from electra_jax.config import flatten
from electra_jax.errors import UserError, named, unknown

PACKAGE = os.path.dirname(os.path.abspath(__file__))
# Folders that may hold configs/: a checkout's, and an installed wheel's.
ROOTS = (os.path.dirname(PACKAGE), os.path.join(PACKAGE, "_recipes"))
PARSERS = {int: (flags.IntegerParser(), "an integer"), float: (flags.FloatParser(), "a number"),
           bool: (flags.BooleanParser(), "True or False"), tuple: (TupleParser(), "a tuple")}


def find(argument: str) -> str:
  """The full path of one of the project's recipes, by name or path, from any folder; others unchanged. Keeps :variant.

  >>> os.path.relpath(find("base:fast"), ROOTS[0]), os.path.relpath(find("configs/finetune/glue.py"), ROOTS[0])
  ('configs/base.py:fast', 'configs/finetune/glue.py')
  >>> os.path.relpath(find("glue:rte"), ROOTS[0]), find("my.py")
  ('configs/finetune/glue.py:rte', 'my.py')
  >>> os.path.relpath(find("ablations:table3_bert,tiny"), ROOTS[0])
  'configs/ablations.py:table3_bert,tiny'
  """
  path, colon, variant = argument.partition(":")
  if not os.path.isfile(path):
    name = path.removeprefix("configs/").removesuffix(".py") + ".py"
    paths = (os.path.join(root, "configs", folder, name) for root in ROOTS for folder in ("", "finetune"))
    path = next(filter(os.path.isfile, paths), path)
  return path + colon + variant


def shorten(argument: str) -> str:
  """The path of one of the project's recipes without the folder that holds configs/; others unchanged.

  >>> shorten(find("base:fast")), shorten("my.py")
  ('configs/base.py:fast', 'my.py')
  """
  for root in reversed(ROOTS):  # the wheel's is within the other
    argument = argument.removeprefix(root + os.sep)
  return argument


def with_paths(argv: list[str]) -> list[str]:
  """A command line with its --config replaced by `find`."""
  argv = list(argv)
  for place, word in enumerate(argv):
    if re.match("--?config=", word):
      argv[place] = f"--config={find(word.partition('=')[2])}"
    elif word in ("-config", "--config") and place + 1 < len(argv):
      argv[place + 1] = find(argv[place + 1])
  return argv


def _make_importable(path: str) -> None:
  """Lets a recipe import others: one of the project's from its own configs/, another also from that of this folder."""
  own = [root for root in ROOTS if path.startswith(os.path.join(root, "configs", ""))]
  for folder in own or (os.getcwd(), *ROOTS):
    if os.path.isfile(os.path.join(folder, "configs", "common.py")):
      if sys.path[0] != folder:
        sys.path.insert(0, folder)
      break


def load(argument: str) -> tuple[str, ConfigDict]:
  """(docstring, unresolved config) of a recipe by name or path, with or without :variant.

  In a file with ROWS, such as configs/ablations.py, the docstring is the row's.

  Raises:
    UserError: the file is not a recipe.
  """
  path, _, variant = find(argument).partition(":")
  _make_importable(path)
  try:
    module = load_file(path)
    given = module.get_config(variant) if variant else module.get_config()
    if not isinstance(given, ConfigDict):
      raise TypeError(f"get_config gives a {type(given).__name__}, not a ConfigDict")
  except UserError:  # an unknown variant
    raise
  except Exception as error:  # a recipe is a program: it can raise anything
    raise UserError("The recipe cannot be loaded", got=f"{argument}: {type(error).__name__}: {error}",
                    allowed="a name like base or base:fast, or a Python file with get_config, like those in configs/",
                    fix="check the name or path, for example --config=tiny, or correct the file") from error
  row = getattr(module, "ROWS", {}).get(variant.partition(",")[0])
  return row[0] if row else (module.__doc__ or "").strip(), given


def of_task(name: str, is_large: bool) -> ConfigDict:
  """The recipe of configs/finetune/ for a task, with ELECTRA's settings (Table 5, for Large its own column).

  >>> of_task("rte", is_large=True).task.num_epochs, of_task("squad_v2.0", is_large=False).task.name
  (10.0, 'squad_v2.0')
  """
  kind, _, rest = name.partition("_")
  file, argument = {"own": ("own", rest), "squad": ("squad", rest), "race": ("race", "")}.get(kind, ("glue", name))
  size = "large" if is_large and file != "own" else ""  # own.py adapts to the width itself
  return load(f"{file}:{','.join(filter(None, (argument, size)))}".rstrip(":"))[1]


def load_file(path: str) -> types.ModuleType:
  """The module of a recipe's file."""
  spec = importlib.util.spec_from_file_location(f"recipe_{os.path.basename(path)[:-3]}", path)
  if spec is None or spec.loader is None:
    raise ImportError("its name does not end in .py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def from_rows(rows: Mapping[str, tuple[str, str, Mapping]], name: str) -> ConfigDict:
  """The config of a row of configs/ablations.py or evidence.py: (docstring, recipe or row, {key: value} on it).

  Raises:
    UserError: there is no such row.
  """
  if name not in rows:
    raise unknown("The table of recipes has no such row", name or "nothing", rows, "write its name after the colon, "
                  "for example :CLOSEST or :CLOSEST,tiny")
  _, base, changes = rows[name]
  config = from_rows(rows, base) if base in rows else load(base)[1]
  config.update_from_flattened_dict(changes)
  return config


def override(given: ConfigDict, settings: Sequence[str]) -> None:
  """Applies KEY=VALUE settings, with each value read as its key's type.

  Raises:
    UserError: a key does not exist or is a group of keys, or a value has another type.
  """
  for setting in settings:
    key, _, text = setting.partition("=")
    given.update_from_flattened_dict({key: _read(key, text, given, prefix="")})


def check_command(argv: list[str]) -> None:
  """Checks the recipe, keys and values of a command line, as ml_collections' errors say less, or nothing.

  Raises:
    UserError: the recipe cannot be loaded, a key does not exist or is a group of keys, a value has another type.
  """
  arguments = flags.FLAGS.read_flags_from_files(argv[1:])
  given: dict[str, Any] = {}
  for argument, following in zip(arguments, [*arguments[1:], None]):
    if match := re.fullmatch(r"--?([\w.-]+?)(?:=(.*))?", argument, re.DOTALL):
      given[match[1]] = following if match[1] == "config" and match[2] is None else match[2]
  if not given.get("config"):
    return
  _, config = load(given["config"])
  keys = flatten(config)
  leaves = {key.split(".")[-1] for key in keys}
  for name, value in given.items():
    if name.startswith("config."):
      _read(name.removeprefix("config."), value, config)
    elif name not in flags.FLAGS and (name in leaves or name.split(".")[0] in config):  # --train.num_steps
      raise _unknown_key(f"--{name}", name, value, keys)


def _read(key: str, text: str | None, config: ConfigDict, prefix: str = "--config.") -> Any:
  """The value of a key from its text; of a flag without one None."""
  keys = flatten(config)
  below = [other for other in keys if other.startswith(f"{key}.")]
  if below:
    raise UserError(f"{prefix}{key} is a group of keys, which must be set one by one", got=text,
                    allowed=named(below), fix=f"for example {prefix}{below[0]}={keys[below[0]]}")
  if key not in keys:
    raise _unknown_key(f"{prefix}{key}", key, text, keys, prefix)
  *branches, leaf = key.split(".")
  for branch in branches:
    config = config[branch]
  parser, form = PARSERS.get(config.get_type(leaf), (None, ""))
  if parser is None or text is None:
    return text
  try:
    return parser.parse(text)
  except (TypeError, ValueError):
    raise UserError(f"A key of the recipe has a value that is not {form}", got=f"{prefix}{key}={text}", allowed=form,
                    fix=f"for example {prefix}{key}={_nearest(text, keys[key])}") from None


def _nearest(value: str, default: object) -> object:
  """The integer that was meant by 1e5 or 1,000; else the recipe's value."""
  try:
    number = float(value.replace(",", ""))
  except ValueError:
    return default
  return int(number) if number.is_integer() else default


def _unknown_key(option: str, key: str, value: str | None, keys: dict[str, object], prefix: str = "--config."
                 ) -> UserError:
  """The error for --config.optim.learning_rate or --train.num_steps, with the key that was probably meant."""
  same_leaf = [other for other in keys if other.split(".")[-1] == key.split(".")[-1]]
  close = difflib.get_close_matches(key, same_leaf or keys, n=1, cutoff=0.0 if same_leaf else 0.6)
  meant = f"write {prefix}{close[0]}" + ("" if value is None else f"={value}") if close else "leave it out"
  return UserError("An option is unknown", got=option, allowed=f"{prefix}KEY=VALUE with the keys of "
                   "configs/common.py" + (f"; did you mean {close[0]}?" if close else ""), fix=meant)
