#!/bin/bash
# A run of Assay on several machines of Slurm: a Ray head, a Ray worker on every other machine, and
# the learner beside the head.
#
#   sbatch --nodes=3 examples/cluster/slurm.sh run.toml --set scale.rollout_actors=4
#
# Everything after the script goes to `assay train`. Every machine needs the same environment and the
# model at the same path; set VENV to a virtual environment's folder if it is not active already.
#SBATCH --job-name=assay
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00

set -euo pipefail

if [ $# -eq 0 ]; then
    echo "slurm.sh: found no configuration; accepted: sbatch slurm.sh run.toml [options of assay train]" >&2
    exit 2
fi
if [ -n "${VENV:-}" ]; then
    source "$VENV/bin/activate"
fi

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
port=${RAY_PORT:-6379}
cpus=${SLURM_CPUS_PER_TASK:-1}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
export RAY_ADDRESS="$address:$port"

# --block keeps each `ray start` in the foreground, so that Slurm ends it with the job.
# --overlap lets these steps share their machines with the training below.
srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --num-cpus="$cpus" --block &
parts=($!)
trap 'kill "${parts[@]}" 2>/dev/null || true; wait' EXIT

# Wait until so many machines are in the cluster; Ray says in its own words why they are not.
await_nodes() {
    for _ in $(seq "${RAY_WAIT:-120}"); do
        found=$(ray status --address "$RAY_ADDRESS" 2>/dev/null | grep -c '^ 1 node_' || true)
        if [ "$found" -ge "$1" ]; then return; fi
        sleep 1
    done
    ray status --address "$RAY_ADDRESS" >&2 || true
    echo "slurm.sh: found $found machines in the cluster; accepted: $1; see above" >&2
    exit 1
}

await_nodes 1
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" \
        ray start --address="$RAY_ADDRESS" --num-cpus="$cpus" --block &
    parts+=($!)
done

await_nodes "${#nodes[@]}"

srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" --cpus-per-task="$cpus" assay train "$@"
