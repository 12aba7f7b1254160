"""Do the launchers start what they say? Linted, run against commands that only record, and with two real processes."""

import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

import jsonschema
import pytest
import yaml

from electra_jax import metrics
from electra_jax.training import checkpoints
from electra_jax.training import workdir as workdir_lib
from tests.conftest import ONE_DEVICE, ROOT
from tests.small_runs import write_corpus

LAUNCH = ROOT / "launch"
SCRIPTS = [*sorted(LAUNCH.glob("**/*.sh")), LAUNCH / "slurm.sbatch", ROOT / "tests/run.sh"]
LINTED = [*SCRIPTS, ROOT / "docs/walk.sh"]


@pytest.mark.parametrize("script", LINTED, ids=lambda path: path.name)
def test_shellcheck_and_mode(script):
  done = subprocess.run([pathlib.Path(sys.executable).with_name("shellcheck"), script], capture_output=True, text=True)
  assert done.returncode == 0, done.stdout
  assert script.stat().st_mode & stat.S_IXUSR
  assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize("script", SCRIPTS[:-1], ids=lambda path: path.name)
def test_every_variable_is_explained(script):
  """What a script takes from its environment stands in its head, or in the table."""
  text = script.read_text()
  head, body = text.split("set -euo pipefail", 1)
  taken = set(re.findall(r"\$\{([A-Z][A-Z_]+)(?=:?-)", body))
  told = head + (LAUNCH / "README.md").read_text()
  assert not [name for name in taken if name not in told and not name.startswith(("SLURM_", "BASH_", "XLA_"))]


def test_every_launcher_is_in_the_table():
  table = (LAUNCH / "README.md").read_text()
  for path in [*SCRIPTS[:-1], *LAUNCH.glob("*.yaml"), LAUNCH / "docker/Dockerfile"]:
    assert f"launch/{path.relative_to(LAUNCH)}" in table, path


# ---- commands in front of the real ones: they record how they were called ----


class Fakes:
  """A folder of commands for PATH; each appends its arguments, one call a line, words separated by tabs."""

  def __init__(self, folder):
    self.folder = folder / "bin"
    self.folder.mkdir()
    self._log = folder / "calls"

  def add(self, name, body=""):
    path = self.folder / name
    path.write_text(f"#!/usr/bin/env bash\n(IFS=$'\\t'; printf '%s\\n' \"{name}\t$*\" >> {self._log})\n{body}\n")
    path.chmod(0o755)
    return path

  def calls(self):
    return [line.split("\t") for line in self._log.read_text().splitlines()]

  def environment(self, **variables):
    return {**os.environ, "XLA_FLAGS": ONE_DEVICE, "PATH": f"{self.folder}:{os.environ['PATH']}", **variables}


@pytest.fixture
def fakes(tmp_path):
  return Fakes(tmp_path)


# The line of every launcher with a model that compiles in a moment in place of a real one.
QUICK_MAIN = f"""[ "$1 $2" = "-m electra_jax.main" ] || exit 9
exec {sys.executable} -m tests.fake_objective "${{@:3}}\""""

# As srun would: a process per task, all with SLURM's variables; the worst exit status wins.
TWO_TASKS = """
shift
export SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_NODES=1
for index in 0 1; do
  SLURM_PROCID=$index SLURM_LOCALID=$index "$@" &
  pids+=($!)
done
trap 'kill -TERM "${pids[@]}"' TERM
worst=0
for pid in "${pids[@]}"; do
  while kill -0 $pid 2> /dev/null; do wait $pid; code=$?; done
  [ $code -le $worst ] || worst=$code
done
exit $worst"""


def arguments(tmp_path, num_steps):
  corpus = write_corpus(tmp_path / "corpus.txt", num_documents=20)
  return ["--config=configs/tiny.py:tiny", f"--workdir={tmp_path}/run", f"--config.data.path={corpus}",
          "--config.data.sequence_length=16", "--config.data.heldout_share=0.1", "--config.data.num_workers=1",
          "--config.data.reader=threads", "--config.data.tokenizer.kind=wordpiece",
          "--config.data.tokenizer.vocab_size=128", "--config.train.batch_size=8", "--config.log.tensorboard=False",
          "--config.train.log_every_steps=1", "--config.optimizer.warmup_steps=1",
          f"--config.train.num_steps={num_steps}"]


def wait_for_training(tmp_path, process):
  deadline = time.monotonic() + 120
  while time.monotonic() < deadline and process.poll() is None:
    log = tmp_path / "run" / metrics.FILE_NAME
    if log.exists() and '"step": 3,' in log.read_text():
      return
    time.sleep(0.05)
  raise AssertionError(process.communicate()[0])


def test_local_starts_two_processes_and_passes_signals_on(tmp_path, fakes):
  """They train together over loopback; SIGTERM to the script stops both with a checkpoint and status 75."""
  python = fakes.add("python", QUICK_MAIN)
  port = subprocess.check_output([sys.executable, "-c", "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); "
                                  "print(s.getsockname()[1])"], text=True).strip()
  variables = fakes.environment(PROCESSES="2", PYTHON=str(python), PORT=port, CUDA_VISIBLE_DEVICES="")
  started = subprocess.Popen([LAUNCH / "local.sh", *arguments(tmp_path, 10**6)], env=variables, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  wait_for_training(tmp_path, started)
  started.send_signal(signal.SIGTERM)
  said = started.communicate(timeout=60)[0]
  assert started.returncode == 75, said
  step = int(re.search(r"Stopped after step ([\d,]+)", said).group(1).replace(",", ""))
  assert checkpoints.saved_steps(f"{tmp_path}/run")[-1] == step
  assert len(fakes.calls()) == 2
  assert "2 cpu device(s)" in said  # one of each process
  start, = workdir_lib.read_starts(f"{tmp_path}/run")
  assert (start["step"], start["num_devices"], start["num_processes"]) == (0, 2, 2)
  last = metrics.read_rows(f"{tmp_path}/run")[-1]
  assert (last["step"], last["split"]) == (step, "time") and 0 < last["time/goodput"] < 1  # also of a run that stops


ENDS = {  # what each process does -> the status of the script
  "all finish": (["exit 0", "exit 0"], 0), "the first fails at once": (["exit 3", "sleep 1"], 3),
  "the second fails at once": (["sleep 1", "exit 2"], 2), "the first fails late": (["sleep 1; exit 4", "exit 0"], 4),
  "one fails, the other notices": (["exit 1", "sleep 1; exit 69"], 1),
  "one notices before the other fails": (["exit 69", "sleep 1; exit 5"], 5),
  "all are asked to stop": (["exit 75", "exit 75"], 75), "one of three fails": (["exit 0", "exit 7", "sleep 1"], 7),
  "one is killed": (["kill -KILL $$", "sleep 1; exit 69"], 137),
  "the first is frozen": (["kill -STOP $$", "exit 69"], 69), "the last is frozen": (["exit 0", "kill -STOP $$"], 69),
  "one fails, one is frozen": (["exit 2", "kill -STOP $$"], 2),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
  """{how they end: (exit status, what is said)}, all at once: they mostly wait."""
  started = {}
  for name, (acts, _) in ENDS.items():
    fakes, cases = Fakes(tmp_path_factory.mktemp("local")), "".join(f"{i}) {act} ;; " for i, act in enumerate(acts))
    python = fakes.add("python", f'[ "$1" != -c ] || exec {sys.executable} "$@"\ncase $PROCESS_ID in {cases}esac')
    started[name] = subprocess.Popen([LAUNCH / "local.sh"], text=True, stderr=subprocess.PIPE, env=fakes.environment(
      PROCESSES=str(len(acts)), PYTHON=str(python), CUDA_VISIBLE_DEVICES="", GRACE="2"))
  said = {name: process.communicate(timeout=60)[1] for name, process in started.items()}
  return {name: (started[name].returncode, said[name]) for name in ENDS}


@pytest.mark.parametrize("name", ENDS)
def test_local_ends_with_the_status_of_the_one_that_failed(ended, name):
  status, said = ended[name]
  assert status == ENDS[name][1], said
  assert ("did not end 2 s after the first" in said) == ("frozen" in name)


def test_slurm_trains_on_two_tasks_and_requeues(tmp_path, fakes):
  """Arguments reach srun whole; jax joins the tasks by SLURM's variables; a stop with status 75 requeues the job."""
  python, scontrol = fakes.add("python", QUICK_MAIN), fakes.add("scontrol")
  fakes.add("srun", TWO_TASKS)
  job = str(os.getpid())
  variables = fakes.environment(PYTHON=str(python), SLURM_SUBMIT_DIR=str(ROOT), SLURM_JOB_ID=job)
  given = arguments(tmp_path, 4)
  done = subprocess.run([LAUNCH / "slurm.sbatch", *given], env=variables, capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr
  assert "2 cpu device(s)" in done.stderr
  assert checkpoints.saved_steps(f"{tmp_path}/run")[-1] == 4
  assert fakes.calls()[0] == ["srun", "--kill-on-bad-exit=1", str(python), "-m", "electra_jax.main", *given]
  assert not [call for call in fakes.calls() if call[0] == scontrol.name]

  fakes.add("srun", "exit 75")
  assert subprocess.run([LAUNCH / "slurm.sbatch", *given], env=variables).returncode == 0
  assert fakes.calls()[-1] == ["scontrol", "requeue", job]
  fakes.add("srun", "exit 3")
  assert subprocess.run([LAUNCH / "slurm.sbatch", *given], env=variables).returncode == 3
  assert fakes.calls()[-1][0] == "srun"


def test_slurm_asks_for_a_signal_and_a_requeue():
  options = re.findall(r"^#SBATCH (\S+)$", (LAUNCH / "slurm.sbatch").read_text(), re.MULTILINE)
  assert {"--requeue", "--signal=TERM@180", "--ntasks-per-node=1", "--open-mode=append"} <= set(options)


def test_the_environment_follows_its_files(tmp_path, fakes):
  """An older file again, as in an older commit, is installed again; others stay installed."""
  (tmp_path / "launch").mkdir()
  script = shutil.copy(LAUNCH / "environment.sh", tmp_path / "launch")
  python = fakes.add("python", '[ "$2" != venv ] || { mkdir -p .venv/bin; cp "$0" .venv/bin/python; }')
  installed = []
  for text, files in (("a==1", "a"), ("a==1", "a b"), ("a==1", "a"), ("a==2", "a b"), ("a==1", "a"), ("a==1", "b")):
    (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text("b==1")
    before = fakes.calls() if installed else []
    subprocess.run([script, *files.split()], env=fakes.environment(PYTHON=str(python)), check=True)
    installed.append(any("pip" in call[-1] or "pip" in call for call in fakes.calls()[len(before):]))
  assert installed == [True, True, False, True, True, False]


def test_texts_are_the_callers(tmp_path, fakes):
  python = fakes.add("python")
  variables = fakes.environment(PYTHON=str(python), DATA="a b.txt*2, more/*.txt,tfds:pg19,/c", DEVICES="0", GLUE="glue")
  subprocess.run([LAUNCH / "reproduce.sh", "table3"], env=variables, cwd=tmp_path, check=True)
  assert {f"--data={tmp_path}/a b.txt*2,{tmp_path}/more/*.txt,tfds:pg19,/c", f"--glue={tmp_path}/glue"} <= set(
    fakes.calls()[0])


# ---- TPU VMs ----


def tpu(fakes, *words, **variables):
  return subprocess.run([LAUNCH / "tpu_vm.sh", *words], capture_output=True, text=True,
                        env=fakes.environment(TPU="t", ZONE="z", TYPE="v6e-8", VERSION="v", **variables))


GCLOUD = {
  ("create",): "compute tpus queued-resources create t --node-id=t --zone=z --accelerator-type=v6e-8 "
               "--runtime-version=v",
  ("status",): "compute tpus queued-resources describe t --zone=z --format=value(state.state)",
  ("delete",): "compute tpus queued-resources delete t --zone=z --force --quiet",
}


@pytest.mark.parametrize("words", GCLOUD)
def test_gcloud_is_called_so(fakes, words):
  fakes.add("gcloud")
  done = tpu(fakes, *words)
  assert done.returncode == 0, done.stderr
  assert fakes.calls() == [["gcloud", *GCLOUD[words].split()]]


def test_a_spot_slice(fakes):
  fakes.add("gcloud")
  assert tpu(fakes, "create", SPOT="1").returncode == 0
  assert fakes.calls()[0][-1] == "--spot"


def test_words_reach_the_hosts_whole(fakes, tmp_path):
  """The command that ssh carries is run by a shell there: blanks and quotes survive."""
  fakes.add("gcloud", 'for word in "$@"; do case $word in --command=*) bash -c "${word#--command=}";; esac; done')
  interpreter = tmp_path / "electra_jax/.venv/bin"
  interpreter.mkdir(parents=True)
  fakes.add("python").rename(interpreter / "python")
  flags = ["--config=configs/base.py", "--workdir=/mnt/bucket/it's here", "--config.data.path=/a b/*.txt"]
  done = subprocess.run([LAUNCH / "tpu_vm.sh", "run", *flags], cwd=tmp_path, capture_output=True, text=True,
                        env=fakes.environment(TPU="t", ZONE="z", HOME=str(tmp_path)) | {"FOLDER": str(tmp_path)})
  ssh = fakes.calls()[0]
  assert ssh[:7] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "t", "--zone=z"] and ssh[7] == "--worker=all"
  # The script itself goes to the checkout; there is a folder of this name in it too, but without an interpreter.
  assert done.returncode != 0 and ".venv/bin/python" in done.stderr
  command = ssh[8].removeprefix("--command=")
  assert subprocess.run(["bash", "-c", command], cwd=tmp_path).returncode == 0
  assert fakes.calls()[-1] == ["python", "-m", "electra_jax.main", *flags]


def test_install_clones_this_commit_and_mounts_the_bucket(fakes):
  fakes.add("gcloud")
  assert tpu(fakes, "install", REPOSITORY="https://example.org/it", BUCKET="b").returncode == 0
  commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
  clone, mount = (call[-1] for call in fakes.calls())
  assert "git clone https://example.org/it electra_jax" in clone and commit in clone and "jax[tpu]==" in clone
  assert "gcsfuse" in mount and " b /mnt/bucket" in mount


def test_the_script_teaches(fakes):
  done = subprocess.run(["./tpu_vm.sh"], cwd=LAUNCH, capture_output=True, text=True, env=fakes.environment())
  assert done.returncode == 2 and "create | install | run" in done.stderr and "BUCKET=" in done.stderr


# ---- Kubernetes ----


def of(properties, required=()):
  """The schema of an object that has these properties and no others."""
  return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def several(item):
  return {"type": "array", "items": item, "minItems": 1}


STRING, COUNT, STRINGS = {"type": "string"}, {"type": "integer", "minimum": 0}, {
  "type": "object", "additionalProperties": {"type": "string"}}
ENV = {"oneOf": [
  of({"name": STRING, "value": STRING}, ["name", "value"]),
  of({"name": STRING, "valueFrom": of({"fieldRef": of({"fieldPath": STRING}, ["fieldPath"])}, ["fieldRef"])},
     ["name", "valueFrom"])]}
CONTAINER = of({
  "name": STRING, "image": STRING, "args": several(STRING), "env": several(ENV),
  "ports": several(of({"containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}}, ["containerPort"])),
  "resources": of({"limits": {"type": "object", "additionalProperties": {"type": ["integer", "string"]}}}),
  "volumeMounts": several(of({"name": STRING, "mountPath": STRING}, ["name", "mountPath"])),
}, ["name", "image", "args"])
VOLUME = {"oneOf": [
  of({"name": STRING, "persistentVolumeClaim": of({"claimName": STRING}, ["claimName"])},
     ["name", "persistentVolumeClaim"]),
  of({"name": STRING, "emptyDir": of({"medium": {"enum": ["", "Memory"]}})}, ["name", "emptyDir"])]}
POD = of({"restartPolicy": {"enum": ["Never", "OnFailure"]}, "terminationGracePeriodSeconds": COUNT,
          "nodeSelector": STRINGS, "containers": several(CONTAINER), "volumes": several(VOLUME)},
         ["restartPolicy", "containers"])
STATUSES = of({"containerName": STRING, "operator": {"enum": ["In", "NotIn"]},
               "values": several({"type": "integer", "minimum": 1, "maximum": 255})}, ["operator", "values"])
POD_FAILURES = of({"rules": several(of({"action": {"enum": ["FailJob", "FailIndex", "Ignore", "Count"]},
                                        "onExitCodes": STATUSES}, ["action", "onExitCodes"]))}, ["rules"])
JOB_FAILURES = of({"name": STRING, "action": {"enum": ["FailJobSet", "RestartJobSet",
                                                       "RestartJobSetAndIgnoreMaxRestarts"]},
                   "onJobFailureReasons": several({"enum": ["BackoffLimitExceeded", "DeadlineExceeded",
                                                            "FailedIndexes", "MaxFailedIndexesExceeded",
                                                            "PodFailurePolicy"]})}, ["action"])
JOB = of({"podFailurePolicy": POD_FAILURES,
          "parallelism": COUNT, "completions": COUNT, "completionMode": {"enum": ["Indexed", "NonIndexed"]},
          "backoffLimit": COUNT, "template": of({"spec": POD}, ["spec"])}, ["template"])
JOB_SET = of({
  "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"}, "kind": {"const": "JobSet"},
  "metadata": of({"name": STRING, "annotations": STRINGS}, ["name"]),
  "spec": of({"failurePolicy": of({"maxRestarts": COUNT, "rules": several(JOB_FAILURES)}),
              "replicatedJobs": several(of({"name": STRING, "replicas": COUNT, "template": of({"spec": JOB}, ["spec"])},
                                           ["name", "template"]))}, ["replicatedJobs"]),
}, ["apiVersion", "kind", "metadata", "spec"])


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("k8s_*.yaml")), ids=lambda path: path.name)
def test_job_sets(path):
  """The fields exist (the part of the JobSet resource that is used), and they agree with each other."""
  document = yaml.safe_load(path.read_text())
  jsonschema.validate(document, JOB_SET)
  replicated = document["spec"]["replicatedJobs"][0]
  job = replicated["template"]["spec"]
  pod = job["template"]["spec"]
  container = pod["containers"][0]
  assert job["parallelism"] == job["completions"] and job["completionMode"] == "Indexed"
  fatal, = job["podFailurePolicy"]["rules"]  # needs restartPolicy Never; only users' mistakes are not tried again
  assert pod["restartPolicy"] == "Never" and fatal["onExitCodes"] == {
    "containerName": container["name"], "operator": "In", "values": [2]}
  assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
  recipe = next(word for word in container["args"] if word.startswith("--config=")).removeprefix("--config=")
  assert (ROOT / recipe).exists()
  env = {row["name"]: row for row in container.get("env", ())}
  if "gpu" in path.name:
    name = f"{document['metadata']['name']}-{replicated['name']}-0-0.{document['metadata']['name']}"
    port = container["ports"][0]["containerPort"]
    assert env["COORDINATOR_ADDRESS"]["value"] == f"{name}:{port}"
    assert env["NUM_PROCESSES"]["value"] == str(job["parallelism"]) and "PROCESS_ID" in env
  else:
    selector = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = container["resources"]["limits"]["google.com/tpu"] * job["parallelism"]
    assert chips == int(selector[0]) * int(selector[1])


def test_the_image_has_what_a_run_needs():
  """Not built here (no daemon): what it copies exists, and its Python is one that the project supports."""
  lines = (LAUNCH / "docker/Dockerfile").read_text()
  for source in re.findall(r"^COPY (\S+)", lines, re.MULTILINE):
    assert (ROOT / source).exists()
  version = re.search(r"^FROM python:3\.(\d+)-slim", lines, re.MULTILINE).group(1)
  assert int(version) >= 11 and 'ENTRYPOINT ["python", "-m", "electra_jax.main"]' in lines
