"""Does `compile_check` tell what the program of a recipe needs, without the devices?"""

import dataclasses
import importlib.util

import pytest

from configs import tiny
from electra_jax import config as config_lib
from electra_jax.errors import UserError
from electra_jax.tools import compile_check, compile_collectives, compile_kernels, compile_program, compile_roofline

# What the compiler writes: a loop of four micro-batches, one collective in two fusions of one channel, a started one,
# a tuple, and a group of one device, which sends nothing.
HLO = """HloModule jit_update, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%fused_1 (p: bf16[8,4]) -> bf16[16,4] {
  ROOT %all-gather.1 = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=1, replica_groups=[2,2]<=[4]
}

%fused_2 (p: bf16[8,4]) -> bf16[16,4] {
  ROOT %all-gather.2 = bf16[16,4]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=1, replica_groups=[2,2]<=[4]
}

%step.clone (s: (s32[], f32[10])) -> (s32[], f32[10]) {
  %all-reduce.3 = (f32[10]{0}, /*index=1*/f32[6]{0}) all-reduce(%x, %y), channel_id=3, replica_groups={{0,1},{2,3}}
}

%all-reduce-scatter.1 (input: f32[8]) -> f32[4] {
  %all-reduce.9 = f32[8]{0} all-reduce(%input), channel_id=9, replica_groups=[2,2]<=[4]
}

%condition (s: (s32[], f32[10])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%move (p: f32[8]) -> f32[8] {
  ROOT %permute = f32[8]{0} collective-permute(%p), channel_id=8, source_target_pairs={{0,1},{1,0}}
}

ENTRY %main (p: bf16[8,4]) -> bf16[16,4] {
  %f1 = bf16[16,4] fusion(%p), kind=kCustom, calls=%fused_1
  %f2 = bf16[16,4] fusion(%p), kind=kCustom, calls=%fused_2
  %f3 = f32[4] fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
  %w = (s32[], f32[10]) while(%t), condition=%condition, body=%step.clone, backend_config={"known_trip_count":{"n":"4"}}
  %start = (bf16[8]{0}, bf16[16]{0}) all-gather-start(%q), channel_id=5, replica_groups=[2,2]<=[4]
  %done = bf16[16]{0} all-gather-done(%start)
  %c = f32[8]{0} conditional(%p1, %q, %q), true_computation=%move, false_computation=%stay
  %other = (bf16[6,8]{1,0}, u32[], token[]) send(%q, %t), channel_id=3, is_host_transfer=true
  %scatter = f32[4]{0} reduce-scatter(%r), channel_id=6, replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %alone = f32[4]{0} all-reduce(%r), channel_id=7, replica_groups=[4,1]<=[4], to_apply=%add
}
"""


NOT_NOTED = HLO.replace(', backend_config={"known_trip_count":{"n":"4"}}', "").replace(
  "  ROOT %less", "  %n = s32[]{:T(128)} constant(4), metadata={}\n  ROOT %less")


@pytest.mark.parametrize("program", [HLO, NOT_NOTED], ids=["trips noted", "trips from the condition"])
def test_collectives_of_a_written_program(program):
  collectives = compile_collectives.parse(program, 4)
  assert compile_collectives.totals(collectives) == {
    "all-reduce": (4, 4 * 64, 4 * 2 * 64 / 2),  # 10 + 6 floats, four times around a group of two
    "all-gather": (2, 128 + 32, 64 + 16),
    "reduce-scatter": (2, 64 + 32, 48 + 16),  # operands of 16 floats for four devices, and of 8 for two
    "collective-permute": (1, 32, 32),  # in a branch
    "send": (1, 96, 96),  # to other slices
  }


@pytest.fixture(scope="module", autouse=True)
def eight_devices():
  """jax has started before the first test: how many fake devices there are can no longer change."""
  import jax

  assert len(jax.devices("cpu")) == 8


@pytest.fixture(scope="module")
def config():
  recipe = tiny.get_config("tiny")
  recipe.train.accumulation_steps = 1
  recipe.model.num_hidden_layers = 1
  return recipe


def _check(recipe, devices, chip=None, **mesh):
  recipe.mesh.update({"data": -1, "fsdp": 1, "tensor": 1} | mesh)
  resolved = config_lib.resolve(recipe)
  return resolved, compile_check.check(resolved, devices, chip)


def test_meshes_of_eight_fake_devices(config, capsys):
  from rich.console import Console

  from electra_jax import flops

  devices = compile_program.make_devices("cpu:8")
  resolved, whole = _check(config, devices)
  _, split = _check(config, devices, fsdp=4, tensor=2)
  assert split.mesh == {"data": 1, "fsdp": 4, "tensor": 2}
  assert split.memory.parameters < whole.memory.parameters / 5
  assert split.memory.optimizer < whole.memory.optimizer / 5
  assert {c.kind for c in whole.collectives if c.size > 100_000} == {"all-reduce"}  # of the gradients
  assert sum(c.sent for c in whole.collectives) > whole.memory.parameters
  assert {"all-gather", "all-reduce"} <= {c.kind for c in split.collectives}
  needed = flops.model_flops(resolved).per_step / len(devices)
  assert 0.8 * needed < whole.program_flops < 2 * needed
  assert compile_check.verdict(whole, resolved, hbm=2**30) == "fits"
  small = whole.memory.total / 2
  assert "does not fit: try" in compile_check.verdict(whole, resolved, small)
  assert "accumulation_steps=2" in compile_check.verdict(whole, resolved, small)
  compile_check.show(split, resolved, devices, None, Console(width=200))
  assert "data=1 fsdp=4 tensor=2" in capsys.readouterr().out


@pytest.mark.parametrize("data,fsdp,tried", [
  (4, 2, "--config.mesh.fsdp=4, --config.train.accumulation_steps=2, --config.train.remat=dots"),
  (1, 8, "--config.train.accumulation_steps=2, --config.train.remat=dots"), (1, 128, "a larger slice"),
  (16, 8, "--config.mesh.fsdp=16")])
def test_what_is_tried_can_be_done(config, data, fsdp, tried):
  """No advice to split over more devices than there are, or a row in two."""
  recipe = config.copy_and_resolve_references()
  recipe.train.update(batch_size=128, remat="none" if data * fsdp < 128 else "full")
  report = compile_check.Report({"data": data, "fsdp": fsdp, "tensor": 1}, "temporaries 19G of 15G")
  assert compile_check.verdict(report, config_lib.resolve(recipe), hbm=2**30) == f"does not fit: try {tried}"


@pytest.mark.parametrize("groups,size", [
  ("mesh['axis_0'=16,'axis_1'=16] {'axis_1'}", 16),  # as the TPU compiler writes meshes
  ("mesh['axis_0'=16,'axis_1'=1,'axis_2'=1] {'axis_0','axis_1'}", 16),
  ("mesh['a'=8,'b'=4], device_ids=([8,4]T(1,0)) {'a':(2)4,'b'}", 16),  # a part of an axis
  ("[16,8]<=[128]", 8),
  ("{{0,1,2,3},{4,5,6,7}}", 4),
  ("{}", 128),  # all
])
def test_groups_of_devices_in_each_notation(groups, size):
  line = f"%r = f32[4]{{0}} all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add"
  ring, = compile_collectives.parse(f"ENTRY %main (p: f32[4]) -> f32[4] {{\n  ROOT {line}\n}}\n", 128)
  assert (ring.group, ring.sent) == (size, 2 * 16 * (size - 1) / size)


def test_cycles_of_kernels_in_a_loop_count_each_time():
  noted = HLO.replace("calls=%fused_1", 'calls=%fused_1, backend_config={"window_config":{"estimated_cycles":"100"}}')
  noted = noted.replace("groups={{0,1},{2,3}}", 'groups={{0,1},{2,3}}, backend_config={"estimated_cycles":"7"}')
  assert compile_kernels.by_part(noted) == {"copies between layouts": (5, 100 + 4 * 7)}


EXPECTED = '"window_config":{{"estimated_cycles":"{}"}}'


def _kernel(scopes: str, config: str) -> str:
  """As the compiler writes it."""
  name = f', metadata={{op_name="jit(f)/while/body/{scopes}" stack_frame_id=1}}' if scopes else ""
  return f"  %k = bf16[8] fusion(%p), kind=kLoop, calls=%c{name}, backend_config={{{config}}}"


def test_cycles_by_part_of_the_model():
  layer, backward = "jvp(Electra.x)/e/layer_00", "transpose(jvp(Electra.x))/e/layer_00"
  expected = {  # part -> (scopes, cycles) of a kernel
    "attention, weights": (f"{layer}/attention/weights/sub", 70),
    "norms, dropout": (f"{backward}/attention/norm/reduce_sum", 11),
    "attention, linear maps": (f"{layer}/attention/dot_general", 30),
    "feed-forward": (f"{layer}/feed_forward/output.product/dot_general", 40),
    "embeddings": ("jvp(Electra.x)/e/embeddings/jit(_take)/gather", 5),
    "heads, loss, sampling": ("jvp(Electra.x)/mlm_head/bpe,ve->bpv/dot_general", 6),
    "optimizer, metrics": ("closed_call/reduce_sum", 8),
    "copies between layouts": ("", 2)}
  lines = [_kernel(scopes, EXPECTED.format(cycles)) for scopes, cycles in expected.values()]
  pallas = _kernel(f"{backward}/attention/weights/jit(backward)/attention_backward/pallas_call", "")
  lines.append(pallas.replace("%k = bf16[8] fusion", "%attention_backward.1 = (bf16[2,256,768]{2,1,0}) custom-call"))
  body = "%step.clone (s: (s32[], f32[10])) -> (s32[], f32[10]) {\n"
  found = compile_kernels.by_part(HLO.replace(body, body + "\n".join(lines) + "\n"))  # in a loop of four
  known = {part: (4, 4 * cycles) for part, (_, cycles) in expected.items()}
  programs = 2 * 2 * (1076 + 2 * 1500) // 2  # two examples, two pairs of heads, two of four blocks of 128 tokens
  assert found == known | {"attention, weights": (8, 4 * (70 + programs))}
  assert compile_kernels.by_part(HLO) == {}


def test_roofline_takes_the_largest_bound():
  chip = compile_roofline.CHIPS["v5e"]
  ring = compile_collectives.Collective("all-reduce", size=10**9, group=4, times=1)
  found = compile_roofline.estimate(chip, num_devices=16, model_flops=16 * 197e12 * 0.01, program_flops=197e12 * 0.012,
                                    least_bytes=819e9 * 0.006, collectives=(ring,), kernel_cycles=0.018 * chip.clock)
  assert (found.compute, found.hbm, found.interconnect) == pytest.approx((0.012, 0.006, 1.5e9 / 100e9))
  assert (found.limit, found.needed) == ("interconnect", pytest.approx(0.01))
  assert (found.seconds, found.expected_seconds) == pytest.approx((0.015, 0.018))
  assert dataclasses.replace(found, kernels=0.01).expected_seconds == found.seconds  # all else overlaps


@pytest.mark.parametrize("call,got", [
  (lambda: compile_program.make_devices("v5e"), "'v5e'"),
  (lambda: compile_program.make_devices("v7:2x2"), "'v7:2x2'"),
  (lambda: compile_program.make_devices("v4:4x4"), "'v4:4x4'"),
  (lambda: compile_program.make_devices("cpu:64"), "for cpu:64"),
  (lambda: compile_program.make_devices("v5e:32x32"), "1024 chips in v5e:32x32"),
  (lambda: compile_program.make_devices("v5p:16x16x32"), "8192 chips in v5p:16x16x32"),  # of a pod of 8960
  (lambda: compile_program.make_devices("cpu:8", slices=2), "--slices=2 of cpu:8"),
])
def test_mistakes_are_told_in_four_parts(call, got):
  with pytest.raises(UserError) as told:
    call()
  assert got in told.value.got
  assert told.value.what and told.value.allowed and told.value.fix


def test_a_mesh_must_use_every_device(config):
  with pytest.raises(UserError, match="does not use every device"):
    _check(config, compile_program.make_devices("cpu:8"), data=3)


def test_the_recipe_may_stand_alone():
  assert compile_check.with_config_flag(["tool", "configs/tiny.py", "--topology=cpu:8"]) == [
    "tool", "--config=configs/tiny.py", "--topology=cpu:8"]
  assert compile_check.with_config_flag(["tool", "--config=x"]) == ["tool", "--config=x"]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None,
                    reason=f"the compiler for TPUs is not installed (pip install {compile_program.LIBTPU})")
def test_slices_have_their_chips():
  for topology, count in (("v5e:16x16", 256), ("v4:4x4x4", 64), ("v5p:8x8x16", 1024), ("v6e:2x2", 4)):
    assert len(compile_program.make_devices(topology)) == count, topology
  with pytest.raises(UserError, match="libtpu knows no such slice"):
    compile_program.make_devices("v5e:3x3")
