/* SPDX-License-Identifier: Apache-2.0 */
/* A fabric on real packets: one AF_PACKET socket for each host's port, one loop for all of them.
 *
 * The clock is CLOCK_MONOTONIC from packet_io_new on. A frame is received into a packet of the
 * fabric and sent from it: it is never copied in between.
 */
#ifndef PACKET_IO_H
#define PACKET_IO_H

#include "fabric.h"

/* cffi: begin */

struct packet_io;

/* Frames that did not come in or go out. */
struct packet_io_counters {
    uint64_t too_long;    /* received, but longer than a packet: an offload that is on */
    uint64_t not_sent;    /* the interface refused */
    uint64_t out_of_packets; /* times that frames had to wait for a free packet */
};

/* With room for the fabric and `socket_count` sockets; NULL: no memory. The configuration was
 * checked. */
struct packet_io *packet_io_new(const struct fabric_config *config, uint32_t socket_count);
void packet_io_free(struct packet_io *io);

struct fabric *packet_io_fabric(struct packet_io *io);

/* Joins an interface to a host's port. 0 or -errno. */
int packet_io_add(struct packet_io *io, const char *interface, uint32_t port);

/* ns since the start. */
int64_t packet_io_now(const struct packet_io *io);

/* Carries packets until `wake_fd` is readable. 0 or -errno. */
int packet_io_run(struct packet_io *io, int wake_fd);

struct packet_io_counters packet_io_counters(const struct packet_io *io);

/* cffi: end */

#endif
