# SPDX-License-Identifier: Apache-2.0
"""What serves the making and the testing of the library, and is not part of it."""
