"""Do the recipes of fine-tuning follow the papers' tables? ELECTRA Table 5, RoBERTa Table 10."""

import importlib

import pytest

from configs.finetune import own
from electra_jax import config as config_lib
from electra_jax import tasks

RECIPES = {  # recipe:argument -> rate, batch, weight decay, layer decay, epochs, warm-up; other keys of `task`
  "glue:cola": ((1e-4, 32, 0, 0.8, 3, 0.1), {}),
  "glue:stsb,large": ((5e-5, 32, 0, 0.9, 10, 0.1), {}),
  "glue:rte,roberta": ((2e-5, 16, 0.1, 1, 10, 0.06), {"max_length": 512}),
  "glue:mnli,bert": ((3e-5, 32, 0.01, 1, 3, 0.1), {"max_length": 128, "pooler": "tanh", "select": "last"}),
  "squad:v1.1": ((1e-4, 32, 0, 0.8, 2, 0.1), {"name": "squad_v1.1", "span_head": "joint"}),
  "squad:v2.0,large": ((5e-5, 32, 0, 0.9, 2, 0.1), {"name": "squad_v2.0", "span_head": "joint"}),
  "squad:v2.0,roberta": ((1.5e-5, 48, 0.01, 1, 2, 0.06), {"name": "squad_v2.0", "span_head": "independent"}),
  # The two lengths: RoBERTa section 5.3.
  "race:": ((1e-4, 16, 0, 0.8, 3, 0.1), {"max_length": 512, "max_question_length": 128}),
  "race:large": ((5e-5, 16, 0, 0.9, 3, 0.1), {"max_length": 512, "max_question_length": 128}),
  "race:roberta": ((1e-5, 16, 0.1, 1, 4, 0.06), {"max_length": 512, "max_question_length": 128}),
}


@pytest.mark.parametrize("width, rate, decay, fresh", [(32, 1.2e-3, 1, 3), (64, 1.2e-3, 1, 3), (128, 6e-4, 1, 0), (
  256, 3e-4, 0.8, 0), (384, 2e-4, 0.8, 0), (768, 1e-4, 0.8, 0), (1024, 7.5e-5, 0.8, 0)])
def test_own_labels_take_what_fits_the_encoder_and_what_is_asked_for(width, rate, decay, fresh):
  c = own.get_config()
  c.task.update(init_from="runs/base", train_path="a.csv")
  c.model.update(hidden_size=width, num_attention_heads=4, num_hidden_layers=3)
  found = config_lib.resolve(c)
  assert (found.optimizer.learning_rate, found.task.layer_decay, found.task.fresh_layers) == (rate, decay, fresh)
  c.optimizer.learning_rate, c.task.layer_decay, c.task.fresh_layers = 5e-5, 0.9, 1
  found = config_lib.resolve(c)
  assert (found.optimizer.learning_rate, found.task.layer_decay, found.task.fresh_layers) == (5e-5, 0.9, 1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_resolve_and_follow_their_tables(recipe):
  name, _, argument = recipe.partition(":")
  c = importlib.import_module(f"configs.finetune.{name}").get_config(argument)
  c.task.update(init_from="runs/base", data_dir="data")
  c = config_lib.resolve(c)
  numbers, others = RECIPES[recipe]
  assert (c.optimizer.learning_rate, c.train.batch_size, c.optimizer.weight_decay_rate, c.task.layer_decay,
          c.task.num_epochs, c.task.warmup_share) == numbers
  assert others == {key: c.task[key] for key in others} and c.task.name in tasks.TASKS
  if name == "squad":
    assert tasks.make(c.task).head == {"joint": "joint_span", "independent": "span"}[c.task.span_head]
