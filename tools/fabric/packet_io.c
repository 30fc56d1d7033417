/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "packet_io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH = 32,                      /* frames a system call */
    RECEIVE_BUFFER = 32 << 20,       /* between namespaces there is no back-pressure */
    SEND_BUFFER = 8 << 20,
};

static const int64_t SECOND = 1000000000;

struct packet_io {
    void *memory;
    struct fabric *fabric;
    int64_t start;
    uint32_t frame_size;
    uint32_t socket_count, socket_max;
    struct pollfd *polled; /* the sockets, then whoever wakes the loop */
    uint32_t *port_of;     /* of each socket */
    uint32_t *socket_of;   /* of each port that has one */
    struct fabric_packet *spare[BATCH];
    uint32_t spare_count;
    struct packet_io_counters counters;
};

static int64_t clock_now(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

int64_t packet_io_now(const struct packet_io *io) { return clock_now() - io->start; }

struct fabric *packet_io_fabric(struct packet_io *io) { return io->fabric; }

struct packet_io_counters packet_io_counters(const struct packet_io *io) { return io->counters; }

struct packet_io *packet_io_new(const struct fabric_config *config, uint32_t socket_count) {
    struct packet_io *io = calloc(1, sizeof *io);

    if (io == NULL)
        return NULL;
    io->memory = malloc(fabric_size(config));
    io->polled = calloc(socket_count + 1, sizeof *io->polled);
    io->port_of = calloc(socket_count + 1, sizeof *io->port_of);
    io->socket_of = calloc(config->port_count + 1, sizeof *io->socket_of);
    if (io->memory == NULL || io->polled == NULL || io->port_of == NULL || io->socket_of == NULL) {
        packet_io_free(io);
        return NULL;
    }
    io->socket_max = socket_count;
    io->frame_size = config->frame_size;
    io->fabric = fabric_init(config, io->memory);
    io->start = clock_now();
    return io;
}

void packet_io_free(struct packet_io *io) {
    for (uint32_t i = 0; i < io->socket_count; i++)
        close(io->polled[i].fd);
    free(io->socket_of);
    free(io->port_of);
    free(io->polled);
    free(io->memory);
    free(io);
}

/* Beyond rmem_max if this process may, else as far as it goes. */
static void set_buffer(int fd, int forced, int plain, int size) {
    if (setsockopt(fd, SOL_SOCKET, forced, &size, sizeof size) != 0)
        setsockopt(fd, SOL_SOCKET, plain, &size, sizeof size);
}

static int open_socket(const char *interface) {
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    int one = 1;
    int fd;

    address.sll_ifindex = (int)if_nametoindex(interface);
    if (address.sll_ifindex == 0)
        return -errno;
    fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, RECEIVE_BUFFER);
    set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, SEND_BUFFER);
    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;

        close(fd);
        return -error;
    }
    return fd;
}

int packet_io_add(struct packet_io *io, const char *interface, uint32_t port) {
    int fd;

    if (io->socket_count == io->socket_max)
        return -ENOSPC;
    fd = open_socket(interface);
    if (fd < 0)
        return fd;
    io->port_of[io->socket_count] = port;
    io->socket_of[port] = io->socket_count;
    io->polled[io->socket_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return 0;
}

/* Sends up to BATCH packets that go out by one socket. What it refuses is lost, as on a wire. */
static void send_batch(struct packet_io *io, uint32_t port, struct fabric_packet **packets,
                       uint32_t count) {
    struct mmsghdr messages[BATCH];
    struct iovec slices[BATCH];
    int sent;

    memset(messages, 0, sizeof messages);
    for (uint32_t i = 0; i < count; i++) {
        slices[i] = (struct iovec){packets[i]->frame, packets[i]->size};
        messages[i].msg_hdr.msg_iov = &slices[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    sent = sendmmsg(io->polled[io->socket_of[port]].fd, messages, count, 0);
    io->counters.not_sent += count - (sent < 0 ? 0u : (uint32_t)sent);
    for (uint32_t i = 0; i < count; i++)
        fabric_give(io->fabric, packets[i]);
}

static void send_all(struct packet_io *io) {
    struct fabric_packet *packets[BATCH];
    struct fabric_packet *packet;
    uint32_t count = 0;
    uint32_t last = 0;
    uint32_t port;

    while ((packet = fabric_poll(io->fabric, &port)) != NULL) {
        if (count > 0 && (port != last || count == BATCH)) {
            send_batch(io, last, packets, count);
            count = 0;
        }
        packets[count++] = packet;
        last = port;
    }
    if (count > 0)
        send_batch(io, last, packets, count);
}

static void fill_spares(struct packet_io *io) {
    while (io->spare_count < BATCH) {
        struct fabric_packet *packet = fabric_take(io->fabric);

        if (packet == NULL)
            return;
        io->spare[io->spare_count++] = packet;
    }
}

static void enter(struct packet_io *io, uint32_t port, struct fabric_packet *packet,
                  const struct mmsghdr *message, int64_t now) {
    if (message->msg_hdr.msg_flags & MSG_TRUNC) {
        io->counters.too_long++;
        fabric_give(io->fabric, packet);
        return;
    }
    packet->size = packet->present = message->msg_len;
    packet->handle = 0;
    fabric_enter(io->fabric, port, packet, now);
}

/* One batch, so that no port keeps the others waiting. */
static void receive(struct packet_io *io, uint32_t socket) {
    struct mmsghdr messages[BATCH];
    struct iovec slices[BATCH];
    uint32_t count = io->spare_count;
    int64_t now;
    int got;

    memset(messages, 0, sizeof messages);
    for (uint32_t i = 0; i < count; i++) {
        slices[i] = (struct iovec){io->spare[i]->frame, io->frame_size};
        messages[i].msg_hdr.msg_iov = &slices[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    got = recvmmsg(io->polled[socket].fd, messages, count, 0, NULL);
    if (got <= 0)
        return; /* nothing, or the interface has gone down: there will be a next time */
    now = packet_io_now(io);
    for (uint32_t i = 0; i < (uint32_t)got; i++)
        enter(io, io->port_of[socket], io->spare[i], &messages[i], now);
    io->spare_count -= (uint32_t)got;
    memmove(io->spare, io->spare + got, io->spare_count * sizeof *io->spare);
}

/* Waits for frames, for the wake descriptor or for the fabric. ppoll, since it is the exactest that
 * does not spin. Without a free packet it does not look at frames, which wait in their sockets. */
static int wait_for_work(struct packet_io *io) {
    int64_t deadline = fabric_deadline(io->fabric);
    int64_t left = deadline == FABRIC_NEVER ? 0 : deadline - packet_io_now(io);
    struct timespec timeout = {0, 0};
    struct pollfd *first = io->polled;
    nfds_t count = io->socket_count + 1;

    if (io->spare_count == 0) {
        io->counters.out_of_packets++;
        first += io->socket_count;
        count = 1;
    }
    if (left > 0)
        timeout = (struct timespec){left / SECOND, left % SECOND};
    return ppoll(first, count, deadline == FABRIC_NEVER ? NULL : &timeout, NULL);
}

int packet_io_run(struct packet_io *io, int wake_fd) {
    struct pollfd *wake = &io->polled[io->socket_count];

    *wake = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (;;) {
        fabric_advance(io->fabric, packet_io_now(io));
        send_all(io);
        fill_spares(io);
        for (uint32_t i = 0; i <= io->socket_count; i++)
            io->polled[i].revents = 0;
        if (wait_for_work(io) < 0 && errno != EINTR)
            return -errno;
        if (wake->revents != 0)
            return 0;
        for (uint32_t i = 0; i < io->socket_count; i++) {
            /* An interface that went down says so once, by an error that has to be taken. */
            if (io->polled[i].revents & (POLLIN | POLLERR)) {
                receive(io, i);
                fill_spares(io);
            }
        }
    }
}
