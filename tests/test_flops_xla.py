"""Is `model_flops` what XLA counts? The real update, traced and lowered, never compiled; every difference has a name.

First exactly: the matrix products of the program are `model_flops` and one product that stands in for a gather. Then
XLA's total is these products and the operations on single elements, by kind.
"""

import collections
import functools
import math

import jax
import jax.numpy as jnp
import pytest

from configs import roberta_base, small
from electra_jax import config as config_lib
from electra_jax import flops, objectives, optim
from electra_jax.models.bert import make_transformer_config
from electra_jax.training import step as step_lib
from electra_jax.training.train_state import TrainState

SIZES = {"data.sequence_length": 64, "train.batch_size": 8, "model.hidden_size": 128, "model.embedding_size": 64,
         "model.intermediate_size": 512, "model.num_attention_heads": 2}
NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}
RUNS = {"masked LM": (roberta_base, {}), "masked LM, no dropout": (roberta_base, NO_DROPOUT), "ELECTRA": (small, {})}


def program(recipe, changes):
  """(config, update, abstract arguments) of one optimizer update of a recipe at small size."""
  given = recipe.get_config("tiny")
  given.update_from_flattened_dict(SIZES | changes)
  config = config_lib.resolve(given)
  transformer = make_transformer_config(config.model, num_tokens=config.data.tokenizer.vocab_size,
                                        dtype=config.train.compute_dtype, remat=config.train.remat)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps)
  tx, _ = optim.make(config.optimizer, config.train.num_steps)
  rows, length = config.train.batch_size, config.data.sequence_length
  slots = config_lib.num_predictions(config.data.masking.rate, length)
  shapes = dict.fromkeys(("input_ids", "masked_input_ids", "token_type_ids"), ((rows, length), jnp.int32))
  shapes |= dict.fromkeys(("masked_positions", "masked_ids"), ((rows, slots), jnp.int32))
  shapes |= {"attention_mask": ((rows, length), bool), "masked_weights": ((rows, slots), jnp.float32)}
  batch = {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes.items()}
  key = jax.random.key(0)
  params = jax.eval_shape(functools.partial(objective.init, key), batch)
  state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(tx.init, params))
  update = functools.partial(step_lib.update, objective=objective, phase=objective.phases[0], tx=tx, rng=key,
                             accumulation_steps=1)
  return config, update, (state, batch)


def operations(jaxpr, counts=None):
  """Counter by primitive: operations of matrix products, elements that reductions read, elements that others make."""
  counts = collections.Counter() if counts is None else counts
  for equation in jaxpr.eqns:
    name, params = equation.primitive.name, equation.params
    inner = [value for parameter in params.values()
             for value in (parameter if isinstance(parameter, tuple | list) else [parameter])
             if hasattr(value, "jaxpr") or hasattr(value, "eqns")]
    made = sum(math.prod(variable.aval.shape) for variable in equation.outvars)
    if inner:
      for program in inner[:1] if name.startswith("custom_") else inner:
        operations(getattr(program, "jaxpr", program), counts)
    elif name == "dot_general":
      contracted = params["dimension_numbers"][0][0]
      counts[name] += 2 * made * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    elif name.startswith("reduce_"):
      counts[name] += sum(math.prod(variable.aval.shape) for variable in equation.invars)
    else:
      counts[name] += made
  return counts


@functools.cache
def counted(run):
  recipe, changes = RUNS[run]
  config, update, arguments = program(recipe, changes)
  total = jax.jit(update).lower(*arguments).cost_analysis()["flops"]
  return config, operations(jax.make_jaxpr(update)(*arguments).jaxpr), total


def products_in_place_of_gathers(config):
  """Masked positions are picked by one-hot products; the one-hot side needs no gradient."""
  rows, length = config.train.batch_size, config.data.sequence_length
  slots = config_lib.num_predictions(config.data.masking.rate, length)
  generator = config.objective.name == "rtd"
  selected_width = config.generator.hidden_size if generator else config.model.hidden_size
  return 2 * (2 * rows * slots * length * selected_width)  # forward, and the gradient of the other side


@pytest.mark.parametrize("run", RUNS)
def test_products_are_the_count_exactly(run):
  config, counts, _ = counted(run)
  assert counts["dot_general"] == flops.model_flops(config).per_step + products_in_place_of_gathers(config)


def per_element(function):
  """XLA's own price of one element of a function that it expands into many operations."""
  size = 1000
  arguments = jax.ShapeDtypeStruct((size,), jnp.float32)
  return jax.jit(function).lower(arguments).cost_analysis()["flops"] / size


# Exponentials, logarithms, erf and roots are "transcendentals" to XLA, not FLOPs; moving data is none either.
FREE = {"exp", "log", "log1p", "erf", "sqrt", "rsqrt", "tanh", "reshape", "broadcast_in_dim", "transpose", "copy",
        "gather", "scatter", "pad", "slice", "squeeze", "iota", "stop_gradient", "concatenate", "dynamic_slice"}


@pytest.mark.parametrize("run", RUNS)
def test_the_rest_is_elements_by_kind(run):
  """Within 2 % as asked, and within 0.5 % as it is."""
  _, counts, total = counted(run)
  prices = {"random_bits": per_element(lambda x: jax.random.bits(jax.random.key(0), x.shape, jnp.uint8)),
            "integer_pow": 2.0} | dict.fromkeys(FREE, 0.0)
  explained = sum(count * prices.get(name, 1.0) for name, count in counts.items())
  assert explained == pytest.approx(total, rel=0.005)
  unexplained_by_products_alone = total / counts["dot_general"] - 1
  assert 0.02 < unexplained_by_products_alone < 0.1  # so small is the model of this test; it falls with the width
