# SPDX-License-Identifier: Apache-2.0
"""Programs that use the library as an application would: run them, read them, take them over."""
