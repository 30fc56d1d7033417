# SPDX-License-Identifier: Apache-2.0
"""The commands mrc-send, mrc-recv and mrc-perf."""
