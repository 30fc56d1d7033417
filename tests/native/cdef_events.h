/* SPDX-License-Identifier: Apache-2.0 */
/* headers: sim/event_queue.h */
/* sources: sim/event_queue.c */
