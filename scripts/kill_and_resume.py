"""Kill one training run at twenty random moments, resume it each time, and compare it with a run that was left alone.

    .venv/bin/python scripts/kill_and_resume.py [KILLS]

Moments are random in time, some in the start-up, most once it is training: in updates, evaluations and the writing of
checkpoints alike.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memformer_torch.metrics import read_metrics

SETTINGS = """--data.name digits --model.name memformer --model.d_model 16 --model.num_heads 2 --model.d_ff 16
    --model.num_encoder_layers 1 --model.num_decoder_layers 1 --model.segment_length 8 --model.num_slots 2 --train.updates 400
    --train.batch_size 4 --train.horizon 3 --train.evaluate_every 5 --train.evaluate_tokens 200 --train.checkpoint_every 2
    --train.log_every 1 --device cpu"""


def start(arguments: list[str], log: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "memformer_torch", "train", *arguments]
    with log.open("ab") as file:
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=file, stderr=file)


def last_update(run: Path) -> int:
    return max((line["update"] for line in read_metrics(run)), default=0)


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        alone, killed, log = (Path(folder) / name for name in ("alone", "killed", "log"))
        if start([*SETTINGS.split(), "--out", str(alone)], log).wait():
            sys.exit(log.read_text())
        done = 0
        while done < kills:
            before = last_update(killed)
            process = start(
                ["--resume", str(killed)] if (killed / "config.yaml").exists() else [*SETTINGS.split(), "--out", str(killed)],
                log,
            )
            while random.random() < 0.995 and process.poll() is None and last_update(killed) <= before:
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, 0.8))
            if process.poll() is not None:
                sys.exit(f"the run ended before kill {done + 1} (raise train.updates):\n{log.read_text()[-2000:]}")
            process.kill()
            process.wait()
            done += 1
            print(f"kill {done:2}: at update {last_update(killed)}", flush=True)
        if start(["--resume", str(killed)], log).wait():
            sys.exit(log.read_text()[-2000:])
        if read_metrics(killed) != read_metrics(alone):
            sys.exit("the loss curves differ")
        print(f"{kills} kills, {len(read_metrics(alone))} lines of metrics: equal to the run that was left alone")


if __name__ == "__main__":
    main()
