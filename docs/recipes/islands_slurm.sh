#!/usr/bin/env bash
# Four islands with a GPU each, as an array. Its jobs may start at any time, on
# any partition. Two are enough to begin; the others may join later.
#   On a host that all jobs can reach, for example the login node:
#     selsync meet --islands=4 --minimum=2 --host=login.example --keep=point.json \
#       --timeout=600   # Seconds that the first job waits for all four.
#   export SELSYNC_INVITATION=...   # The printed invitation.
#   sbatch docs/recipes/islands_slurm.sh
#SBATCH --job-name=islands
#SBATCH --array=0-3
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120   # Two minutes before the end: leave or, if all jobs end, save.
#SBATCH --requeue           # The same command rejoins, or resumes.
#SBATCH --open-mode=append
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?submit this with sbatch}"
source .venv/bin/activate  # On a disk that all nodes share.
: "${SELSYNC_INVITATION:?the invitation that selsync meet prints}"

code=0
srun python train.py \
  --island="island$SLURM_ARRAY_TASK_ID" \
  --config=configs/digits.py:selsync \
  --config.workers="$SLURM_ARRAY_TASK_COUNT" \
  --workdir="$SLURM_SUBMIT_DIR/runs/$SLURM_JOB_NAME" || code=$?

# Requeue after a signal (75, 130); after a failure, if there were fewer than ten requeues
# for any reason; never after a mistake (2).
case $code in
  0 | 2) exit "$code" ;;
  75 | 130) ;;
  *) [[ ${SLURM_RESTART_COUNT:-0} -lt 10 ]] || exit "$code" ;;
esac
scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
exit "$code"
