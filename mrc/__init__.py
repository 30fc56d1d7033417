# SPDX-License-Identifier: Apache-2.0
"""Multipath Reliable Connection: one connection over several network planes."""
