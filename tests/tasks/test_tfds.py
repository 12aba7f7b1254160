"""Are TFDS's GLUE sets read as the official files are? Two small sets written by the test, in TFDS's own format."""

import functools

import numpy as np
import pytest

from configs.finetune import glue as recipe
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.tasks import records

SETS = {  # name -> columns, label names, {split: (texts, label number) each}; -1 is hidden
  "rte": (("sentence1", "sentence2"), ["entailment", "not_entailment"],
          {"train": [(("café a", "b"), 0), (("c", "d"), 1)], "validation": [(("e", "f"), 1)],
           "test": [(("g", "h"), -1)]}),
  "cola": (("sentence",), ["unacceptable", "acceptable"],
           {"train": [(("A bc .",), 1)], "validation": [(("x",), 0)], "test": [(("y",), -1)]}),
}


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
  import tensorflow_datasets as tfds
  folder = str(tmp_path_factory.mktemp("tfds"))
  for name, (columns, labels, splits) in SETS.items():
    features = {"idx": tfds.features.Scalar(np.int32), "label": tfds.features.ClassLabel(names=labels),
                **{column: tfds.features.Text() for column in columns}}
    rows = {split: [(i, dict(zip(columns, texts)) | {"idx": i, "label": label})
                    for i, (texts, label) in enumerate(found)] for split, found in splits.items()}
    tfds.dataset_builders.store_as_tfds_dataset(
      name="glue", config=name, version="2.0.0", features=tfds.features.FeaturesDict(features), split_datasets=rows,
      data_dir=folder, disable_shuffling=True)
  with pytest.MonkeyPatch.context() as patch:  # TFDS reads TFDS_DATA_DIR when it is imported
    patch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=folder))
    yield


@pytest.mark.parametrize("name", SETS)
def test_texts_labels_and_splits(name, tfds_dir):
  config = recipe.get_config(name)
  config.task.data_dir = "tfds:glue"
  task = tasks.make(config.task)
  splits = SETS[name][2]
  for ours, theirs in (("train", "train"), ("dev", "validation"), ("test", "test")):
    examples = task.read(ours)
    assert [example.texts for example in examples] == [texts for texts, _ in splits[theirs]]
    wanted = [None if label < 0 else task.label_names[label] for _, label in splits[theirs]]
    assert [example.label for example in examples] == wanted
    assert examples[0].example_id == "0" and examples[0].where == f"tfds:glue/{name}:{theirs}:0"


def test_an_unknown_set_is_told(tfds_dir):
  with pytest.raises(UserError, match="A TFDS data set cannot be read") as caught:
    records.read_tfds("glue_of_mine/rte", "train")
  assert "tfds:glue_of_mine/rte:train" in caught.value.got and caught.value.fix and caught.value.allowed
