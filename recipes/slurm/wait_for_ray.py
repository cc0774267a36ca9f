"""Wait until every node of a SLURM job has joined its Ray cluster with its GPUs; exit code 1 says which has not."""

import argparse
import logging
import sys
import time

import ray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="HOST:PORT of the head")
    parser.add_argument("--nodes", required=True, help="names of the nodes, separated by commas")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs that each node has to bring")
    parser.add_argument("--timeout", type=float, required=True, help="seconds")
    parser.add_argument("--logs", required=True, help="folder that the error names")
    options = parser.parse_args()
    end = time.monotonic() + options.timeout
    problems = ["nothing was tried"]
    while time.monotonic() < end:
        problems = missing(options.address, options.nodes.split(","), options.gpus)
        if not problems:
            print(f"Ray is up: {options.nodes}, {options.gpus} GPUs each", flush=True)
            return 0
        time.sleep(1)
    print(f"error: Ray was not complete after {options.timeout:.0f} s:", *problems, sep="\n  ", file=sys.stderr)
    print(
        f"see {options.logs}/ray-NODE.log; CLUSTER_TIMEOUT waits longer, HEAD_IP chooses the network", file=sys.stderr
    )
    return 1


def missing(address: str, names: list[str], gpus: int) -> list[str]:
    """What is not there yet, one line each."""
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            return [f"no head at {address}: {str(error).splitlines()[0]}"]
    alive = {node["NodeName"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    problems = [f"node {name} has not joined" for name in names if name not in alive]
    for name in names:
        found = int(alive.get(name, {}).get("GPU", 0))
        if name in alive and found < gpus:
            problems.append(f"node {name} has {found} GPUs, not {gpus}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
