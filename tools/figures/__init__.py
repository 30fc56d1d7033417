# SPDX-License-Identifier: Apache-2.0
"""The published results of MRC, each computed by the simulator: `python -m tools.figures.<id>`."""
