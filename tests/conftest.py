"""Eight CPU devices, a compilation cache that lasts between runs, and shape annotations that are checked."""

import gc
import os
import pathlib
import shutil
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Unoptimised programs of plain loops, in one piece, compile in a quarter of the time; most tests that start processes
# of their own run optimised ones. jaxlib 0.11 has no such loops.
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
                           " --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1" +
                           " --xla_cpu_use_fusion_emitters=false" * version("jaxlib").startswith("0.10."))
# A process that must compile all Python code anew starts half a second later.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
from jaxtyping import install_import_hook

# Their assertions say what differs, as those of the tests themselves do.
pytest.register_assert_rewrite("tests.small_runs", "tests.data.corpora")

# Every jaxtyping annotation of the numerical code is checked at trace time.
install_import_hook(["electra_jax.models", "electra_jax.objectives"], "beartype.beartype")

import jax  # noqa: E402 - after the environment it reads

ROOT = pathlib.Path(__file__).resolve().parents[1]
ONE_DEVICE = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"  # XLA_FLAGS of a process
SHARED = ROOT.parent / "shared"
CACHE = ROOT / ".cache" / "jax"

jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)  # for the processes that tests start


@pytest.fixture(scope="module", autouse=True)
def few_memory_maps():
  """Drops compiled programs once there are many: each takes memory maps, of which Linux gives a process 65,530.

  Without a map for its code the compiler crashes.
  """
  yield
  maps = pathlib.Path("/proc/self/maps")
  if maps.exists() and maps.read_text().count("\n") > 20_000:
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
  """The folder of real vocabularies, weights and corpora; tests that need it are skipped, visibly, without it."""
  if not SHARED.is_dir():
    pytest.skip(f"real reference data is not here ({SHARED}); the sibling tests on small data run instead")
  return SHARED

# With several workers a file is one unit of work; the long ones go first, so that no worker ends with one alone.
LONG_FILES = (
  "pretrain", "net", "ablation_runs", "fused", "continued", "experiments", "finetune", "finetune_reading", "export",
  "faults", "ablations", "gradient_peer", "processes", "configs", "objectives", "launch", "wheel", "first_line",
  "tokenizers", "formats_run", "predict", "parity", "onnx", "compile_check", "partitioning")


def pytest_collection_modifyitems(items):
  """Orders the files, not the tests within one."""
  rank = {name: place for place, name in enumerate(LONG_FILES)}
  items.sort(key=lambda item: rank.get(item.path.stem.removeprefix("test_"), len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
  """What the imports make stays; the garbage collector need not visit it, nor look for the rest so often."""
  gc.disable()
  try:
    return (yield)
  finally:
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()


@pytest.fixture
def quick_model(monkeypatch):
  """Runs train a model that compiles in a moment, whatever their recipe says."""
  from electra_jax import objectives
  from tests import fake_objective

  monkeypatch.setattr(objectives, "make", fake_objective.make)


@pytest.fixture(scope="module")
def one_device():
  """For runs of real models whose subject is not the mesh."""
  from tests import small_runs

  with small_runs.devices(1):
    yield


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
  """A place with a run of the quick model, made once a module; tests that change anything take `place`."""
  from tests import small_runs

  return small_runs.prepare(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def place(finished_run, tmp_path):
  """A copy of `finished_run` for one test."""
  from tests import small_runs

  shutil.copytree(finished_run.root, tmp_path / "place")
  return small_runs.Place(tmp_path / "place")
