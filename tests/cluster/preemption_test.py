"""What asks a run to stop after its step, besides children."""

import os
import subprocess

from selsync_jax.cluster.preemption import Preemption


def test_a_run_stops_once_its_launcher_has_ended(monkeypatch):
  with Preemption() as preemption:
    monkeypatch.setenv('SELSYNC_LAUNCHER', str(os.getpid()))
    assert not preemption.requested(1)
    launcher = subprocess.Popen(['true'])
    launcher.wait()
    monkeypatch.setenv('SELSYNC_LAUNCHER', str(launcher.pid))
    assert preemption.requested(2)
