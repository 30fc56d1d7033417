/* SPDX-License-Identifier: Apache-2.0 */
/* One interface: an AF_PACKET socket that sends and receives whole frames in batches.
 *
 * Frames carry a virtio-net header, so that a frame of several packets passes as one and is cut by
 * the kernel, the device, or our peer. Knows nothing of the core but its frames.
 * Source: packet(7), virtio 1.2 (5.1.6).
 */
#ifndef PLANE_SOCKET_H
#define PLANE_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"

enum {
    PLANE_BATCH = 32,           /* frames of one system call */
    PLANE_FRAME_MAX = 65536 + 64 /* a whole GSO frame */
};

struct plane_socket {
    int fd;    /* AF_PACKET; -1: not open */
    int quiet; /* UDP socket that keeps the kernel from answering with ICMP; -1: none */
    int index; /* of the interface it is bound to; 0: none */
    uint32_t receive_buffer; /* granted, bytes */
    uint32_t send_buffer;    /* the same */
    bool has_gso;            /* the device takes frames of several packets */
    uint64_t kernel_drops;
    uint64_t send_errors;
    int send_errno;
};

struct plane_socket_config {
    uint16_t udp_port;
    uint8_t qp_prefix;
    uint32_t receive_buffer;
    uint32_t send_buffer;
};

/* Opens the socket, filtered but not bound. Returns 0 or the errno. */
int plane_socket_open(struct plane_socket *socket, const struct plane_socket_config *config);
void plane_socket_close(struct plane_socket *socket);

/* Binds to an interface, also again after it was made anew under another index. */
int plane_socket_bind(struct plane_socket *socket, int index);

/* Binds the quiet UDP socket to this address (version 0: to none). Returns 0 or the errno. */
int plane_socket_silence(struct plane_socket *socket, const mrc_address *address,
                         uint16_t udp_port);

/* One batch of received frames: fills in up to PLANE_BATCH frames that point into `buffers`
 * (PLANE_BATCH of PLANE_FRAME_MAX bytes). Returns how many; 0 when there is none now. */
uint32_t plane_socket_receive(struct plane_socket *socket, uint8_t *buffers,
                              mrc_frame_in frames[PLANE_BATCH]);

/* Sends frames in order. Returns how many of them are done with: those that the kernel took, and
 * those it refused for good (counted). Less than `count`: the port is busy. */
uint32_t plane_socket_send(struct plane_socket *socket, mrc_frame_out *const *frames,
                           uint32_t count);

/* Frames that the kernel dropped for want of buffer are added to kernel_drops. */
void plane_socket_count_drops(struct plane_socket *socket);

#endif
