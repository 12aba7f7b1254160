"""The parts of a pre-training: mesh, objective, optimizer, state and compiled step.

Training, the benchmark and the compile check put them together here, so that all three run the very same step.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax import objectives, optim, sharding
from electra_jax.data import pipeline
from electra_jax.models.bert import make_transformer_config
from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives.base import Objective, Phase
from electra_jax.optim import stacks
from electra_jax.training import step, train_state
from electra_jax.training.train_state import TrainState


class Setup(NamedTuple):
  """What `make` puts together."""

  config: ConfigDict  # resolved
  mesh: Mesh
  transformer: TransformerConfig  # of the encoder that is kept
  objective: Objective
  optimizers: tuple[tuple[optax.GradientTransformation, Callable], ...]  # of each phase, with its schedule
  init_params: Callable[[], PyTree]
  abstract_state: TrainState  # jax.ShapeDtypeStruct leaves, with shardings
  layout: stacks.Layout  # of the state for updates
  shared_dtype: jnp.dtype | None  # in which shared kernels are gathered (`optimizer.shard_state`); None: none is shared
  train_key: Array
  eval_key: Array

  def init_state(self) -> TrainState:
    """A new state, on its devices."""
    return train_state.init_state(self.init_params, self.optimizers[0][0], self.mesh, self.config.optimizer.shard_state)

  def stack(self, state: TrainState) -> TrainState:
    """The state in the form in which updates take it."""
    return self._arrange(self.layout.stack, state, self.abstract_stacked)

  def unstack(self, state: TrainState) -> TrainState:
    """The state of updates in the form of checkpoints, with {name: parameter}."""
    return self._arrange(self.layout.unstack, state, self.abstract_state)

  def _arrange(self, arrange: Callable, state: TrainState, wanted: TrainState) -> TrainState:
    if self.layout is stacks.PLAIN:
      return state
    return jax.jit(arrange, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, wanted))(state)

  @property
  def abstract_stacked(self) -> TrainState:
    """`abstract_state` in the form in which updates take it; every device has all of a stack."""
    if self.layout is stacks.PLAIN:
      return self.abstract_state
    place = NamedSharding(self.mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
                        jax.eval_shape(self.layout.stack, self.abstract_state))

  def optimizer_of(self, phase: Phase) -> tuple[optax.GradientTransformation, Callable]:
    """The optimizer of a phase and its schedule, update of the phase (from 0) -> learning rate."""
    return self.optimizers[self.objective.phases.index(phase)]

  def enter(self, phase: Phase, state: TrainState) -> TrainState:
    """The state at the beginning of a phase behind the first: its parameters, and an optimizer that begins anew."""
    params = phase.on_enter(state.params)
    optimizer, _ = self.optimizer_of(phase)
    places = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state.opt_state)
    return state._replace(params=params, opt_state=jax.jit(optimizer.init, out_shardings=places)(params))

  def learning_rate(self, step: int) -> float:
    """Of update `step`, from 0."""
    phase, first_step = self.objective.phase_at(step)
    _, schedule = self.optimizer_of(phase)
    return float(schedule(step - first_step))

  def train_step(self, phase: Phase) -> jax.stages.Wrapped:
    """(state, batches) -> (state, metrics), to be compiled; see `step.make_train_step`."""
    return step.make_train_step(self.abstract_stacked, compiler_options=compiler_options(self.mesh),
                                objective=self.objective, phase=phase, tx=self.optimizer_of(phase)[0],
                                rng=self.train_key, accumulation_steps=self.config.train.accumulation_steps,
                                shared_dtype=self.shared_dtype, layout=self.layout)

  def abstract_batches(self, num_updates: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of so many batches of full rows, as a program takes them."""
    return {name: jax.ShapeDtypeStruct((num_updates, *shape), dtype, sharding=sharding.batches_sharding(self.mesh))
            for name, (shape, dtype) in pipeline.batch_shapes(self.config.data, self.config.train.batch_size).items()}

  def start_compiling(self, newest: int) -> Callable[[Phase], jax.stages.Wrapped]:
    """`train_step`, which has one object for each phase; on a GPU or TPU it is compiled from now on, in a thread.

    Meanwhile the state is made or restored. Not for a run that is finished, as its newest checkpoint's step says; not
    with several phases, as only the restored state says which is next, nor on several hosts, whose compilers wait for
    each other's programs, one after the other.
    """
    step_of, is_finished = functools.cache(self.train_step), newest >= self.config.train.num_steps
    if is_finished or sharding.platform() == "cpu" or len(self.objective.phases) > 1 or jax.process_count() > 1:
      return step_of
    train_step = step_of(self.objective.phases[0])

    def compile_step():
      with contextlib.suppress(Exception), jax.set_mesh(self.mesh):  # who needs the step meets the error again
        train_step.lower(self.abstract_stacked, self.abstract_batches(self.config.train.steps_per_dispatch)).compile()

    def compiled_step_of(phase: Phase) -> jax.stages.Wrapped:
      compiling.join()
      return step_of(phase)

    compiling = threading.Thread(target=compile_step)
    compiling.start()
    return compiled_step_of


def make(config: ConfigDict, mesh: Mesh, num_tokens: int | None = None,
         token_counts: np.ndarray | None = None) -> Setup:
  """The parts of a run; no array is made but the keys.

  Args:
    config: a resolved config.
    mesh: of `sharding.make_mesh`; its devices need not be of this machine.
    num_tokens: of the vocabulary; None: as many as the config asks for.
    token_counts: int [tokens] of the training corpus, for generators that are made of it; None: all alike.
  """
  num_tokens = config.data.tokenizer.vocab_size if num_tokens is None else num_tokens
  token_counts = np.ones(num_tokens, np.int64) if token_counts is None else token_counts
  transformer = make_transformer(config, num_tokens)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps, token_counts)
  optimizers = tuple(optim.make(config.optimizer, phase.num_steps) for phase in objective.phases)
  init_key, train_key, eval_key = jax.random.split(random_key(config.seed, mesh), 3)
  example = {name: jnp.zeros((1, *shape[1:]), dtype)
             for name, (shape, dtype) in pipeline.batch_shapes(config.data, config.train.batch_size).items()}
  init_params = functools.partial(objective.init, init_key, example)
  state = train_state.abstract_state(init_params, optimizers[0][0], mesh, config.optimizer.shard_state)
  shared_dtype = transformer.dtype if config.optimizer.shard_state else None
  with jax.set_mesh(mesh):
    layout = step.choose_layout(state.params, config.train.steps_per_dispatch, objective.phases, shared_dtype)
  return Setup(config, mesh, transformer, objective, optimizers, init_params, state, layout, shared_dtype, train_key,
               eval_key)


def make_mesh(config: ConfigDict, devices: list | None = None) -> Mesh:
  """The devices of a pre-training; None: all that there are.

  Raises:
    UserError: the mesh does not fit them, or a micro-batch does not give each as many rows.
  """
  mesh = sharding.make_mesh(config.mesh, devices)
  sharding.check_batch_size(config.train.batch_size // config.train.accumulation_steps, mesh,
                            "train.batch_size / train.accumulation_steps")
  sharding.check_batch_size(config.eval.batch_size, mesh, "eval.batch_size")
  return mesh


def compiler_options(mesh: Mesh) -> dict[str, bool] | None:
  """XLA's for the train step: on a Hopper GPU it does not choose kernels of its own for products, but cuBLAS.

  There that is 2 to 7 % faster for the papers' models, and compiles in less time (docs/speed.md).
  """
  is_hopper = getattr(mesh.devices.flat[0], "compute_capability", "") == "9.0"
  return {"xla_gpu_enable_triton_gemm": False} if is_hopper else None


def make_transformer(config: ConfigDict, num_tokens: int) -> TransformerConfig:
  """The kept encoder as it is trained: with the config's types, kernels and rematerialisation."""
  return make_transformer_config(config.model, num_tokens=num_tokens, dtype=config.train.compute_dtype,
                                 remat=config.train.remat, kernels=config.train.kernels,
                                 matmul_precision=config.train.matmul_precision, gathered=config.optimizer.shard_state)


def random_key(seed: int, mesh: Mesh) -> Array:
  """The key of a run: threefry on CPUs, where runs are compared bit for bit, rbg on accelerators, where it makes
  dropout several times faster.
  """
  return jax.random.key(seed, impl="threefry2x32" if mesh.devices.flat[0].platform == "cpu" else "rbg")
