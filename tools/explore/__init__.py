# SPDX-License-Identifier: Apache-2.0
"""Random fabrics, workloads and troubles in the simulator, and what must hold in every one.

A seed stands for a `scenario`; `check` lives it and names what did not hold; `shrink` finds the
smallest part that still fails. `make explore SECONDS=n`; `--seed n` replays one.
"""
