#!/usr/bin/env bash
# Four nodes with eight GPUs each, one task per GPU: sbatch docs/recipes/slurm.sh
# train.py finds the other tasks through the environment that srun sets.
#SBATCH --job-name=selsync
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8  # Each task sees all GPUs; JAX picks one.
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120   # Two minutes before the end: save and exit with 75.
#SBATCH --requeue           # The same command resumes from the checkpoint.
#SBATCH --open-mode=append
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?submit this with sbatch}"
source .venv/bin/activate  # On a disk that all nodes share.

# A secret for this run's tasks; srun passes it to them.
SELSYNC_CLUSTER_TOKEN=$(openssl rand -hex 16)
export SELSYNC_CLUSTER_TOKEN

code=0
srun --kill-on-bad-exit=1 python train.py \
  --config=configs/digits.py:selsync \
  --config.workers="$SLURM_NTASKS" \
  --workdir="$SLURM_SUBMIT_DIR/runs/digits-$SLURM_JOB_NAME" || code=$?

# Requeue after a signal (75, 130); after a failure, if there were fewer than ten requeues
# for any reason; never after a mistake (2).
case $code in
  0 | 2) exit "$code" ;;
  75 | 130) ;;
  *) [[ ${SLURM_RESTART_COUNT:-0} -lt 10 ]] || exit "$code" ;;
esac
scontrol requeue "$SLURM_JOB_ID"
exit "$code"
