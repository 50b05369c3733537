#!/bin/bash
# One Slurm job: scheduler and coordinator on its first node, a worker for every task.
#   sbatch slurm.sh run.yaml
# Two minutes before its time limit it saves its state, stops, and queues itself again; then it goes on from there.  After
# any other end (scancel, a lost node) submit it again.  A changed RUN.YAML needs another BNP_RUN_DIR.
#SBATCH --job-name=bnp-dask
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=16
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=4G
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
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
# the log is the coordinator's; of Dask only what goes wrong
export DASK_LOGGING__DISTRIBUTED=${DASK_LOGGING__DISTRIBUTED:-warning}

rm -f "$contact" # of the same job before it was queued again
# any ports, since other jobs may have a scheduler on this node; the log names them
dask scheduler --port 0 --dashboard-address :0 --scheduler-file "$contact" &
scheduler=$!
# a worker that dies is started again; one that the scheduler sends home has ended well.  This shell does for it what
# Dask's nanny would, without a second Python in memory
worker() {
    until
        dask worker --no-nanny --scheduler-file "$contact" --nthreads 1 --memory-limit 3.5GB --death-timeout 120 \
            --local-directory "${TMPDIR:-/tmp}"
    do sleep 1; done
}
export contact && export -f worker
srun bash -c worker &
workers=$!
coordinator=
again=

stop() { [ -z "$coordinator" ] || kill -TERM "$coordinator" 2>/dev/null || true; }
# sends the workers home while there is a scheduler to take leave of: then nothing is left for srun to kill
close() {
    python - "$contact" <<'EOF' || true
import sys
from distributed import Client

with Client(scheduler_file=sys.argv[1], timeout=10) as client:
    client.retire_workers(client.scheduler_info(n_workers=-1)["workers"], close_workers=True, remove=False)
EOF
    for _ in $(seq 30); do kill -0 "$workers" 2>/dev/null || break; sleep 1; done
    kill "$workers" "$scheduler" 2>/dev/null || true
    wait "$scheduler" "$workers" 2>/dev/null || true
    rm -f "$contact"
}
trap 'again=yes; stop' USR1
trap stop TERM
trap close EXIT

for _ in $(seq 120); do [ -s "$contact" ] && break; sleep 1; done

# the coordinator: in this batch script, hence on the node of the scheduler.  It begins the run or goes on with it, and
# ends with an error when the job file is no longer the one that the run was begun with
bnp-dask train "$job" --store "$run" --resume --scheduler-file "$contact" &
coordinator=$!
status=0
wait "$coordinator" || status=$?
# a signal ends a wait at once; another waits for the coordinator to close what is open
while kill -0 "$coordinator" 2>/dev/null; do status=0; wait "$coordinator" || status=$?; done

if [ "$again" ] && [ "$status" = 143 ]; then # 143: stopped by a signal, its state saved
    trap - EXIT
    close
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
