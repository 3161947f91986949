"""The example runs as its first lines say, and the posteriors are all that is exchanged."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated.py"


def test_clients_and_a_server_learn_what_one_process_learns(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--clients", "2", "--rounds", "2", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"within (\S+) of", done.stdout)[1]) < 1e-6
    priors = {f"prior-{r}.safetensors" for r in range(2)}
    posteriors = {f"posterior-{r}-{c}.safetensors" for r in range(2) for c in range(2)}
    assert {path.name for path in tmp_path.iterdir()} == priors | posteriors
