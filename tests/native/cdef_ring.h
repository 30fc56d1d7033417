/* SPDX-License-Identifier: Apache-2.0 */
/* headers: ring_harness.h */
/* sources: ring_harness.c */
