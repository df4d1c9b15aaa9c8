"""The protocol of islands without I/O: no sockets, no threads, no clocks.

The processes of one JAX world use it too; see `cluster.world`.

A `Member` and a `Coordinator` take events (a message, a lost connection, the
time) and leave messages to send. A transport carries them in a run, and
`stress.schedules` in a simulation. A coordinator decides which islands may join
its `Run`; the run decides which of them train in its current `Generation`; and
the generation knows at which `Place` each island is.
"""
