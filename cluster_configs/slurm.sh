#!/bin/bash
# One Slurm job: scheduler and coordinator on its first node, a worker for every task.
#   sbatch slurm.sh run.yaml
# Run it again after a time limit: it goes on from the last checkpoint.  A changed RUN.YAML needs another BNP_RUN_DIR.
#SBATCH --job-name=bnp-dask
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=16
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=4G
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail

job=${1:?usage: sbatch slurm.sh RUN.YAML}
run=${BNP_RUN_DIR:-$SLURM_SUBMIT_DIR/runs/$(basename "${job%.*}")}
contact=$SLURM_SUBMIT_DIR/scheduler-$SLURM_JOB_ID.json
# workers look at themselves less often: fewer of Dask's own profiles, which take tens of MB, and 3 % of a core less
export DASK_DISTRIBUTED__WORKER__PROFILE__CYCLE=10s DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH=10
export DASK_DISTRIBUTED__WORKER__PROFILE__INTERVAL=100ms DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL=200ms
export DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL=5s
# the scheduler looks more often whether idle workers could help busy ones
export DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING_INTERVAL=50ms
# and do not map every array anew, which takes a quarter of their time; they may hold 128 MB for it
export MALLOC_TRIM_THRESHOLD_=134217728 MALLOC_MMAP_THRESHOLD_=33554432
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

dask scheduler --scheduler-file "$contact" &
scheduler=$!
srun dask worker --scheduler-file "$contact" --nthreads 1 --memory-limit 3.5GB --death-timeout 120 \
    --local-directory "${TMPDIR:-/tmp}" &
workers=$!
coordinator=
# two minutes before the time limit: stop the coordinator cleanly; its last checkpoint stays
trap '[ -z "$coordinator" ] || kill -TERM "$coordinator" 2>/dev/null || true' TERM
trap 'kill "$workers" "$scheduler" 2>/dev/null || true; rm -f "$contact"' EXIT

for _ in $(seq 120); do [ -s "$contact" ] && break; sleep 1; done

# the coordinator: in this batch script, hence on the node of the scheduler.  It begins the run or goes on with it, and
# ends with an error when the job file is no longer the one that the run was begun with
bnp-dask train "$job" --store "$run" --resume --scheduler-file "$contact" &
coordinator=$!
status=0
wait "$coordinator" || status=$?
# a signal ends the first wait at once; the second waits for the coordinator to close what is open
if kill -0 "$coordinator" 2>/dev/null; then status=0; wait "$coordinator" || status=$?; fi
exit "$status"
