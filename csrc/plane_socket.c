/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "plane_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bytes.h"

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

enum {
    OFFSET_ETHERTYPE = 12,
    OFFSET_IP = 14,
    IPV6_NEXT = OFFSET_IP + 6,
    IPV6_UDP = OFFSET_IP + 40,
    INNER_NEXT = IPV6_UDP + 6,
    INNER_UDP = IPV6_UDP + 40,
    SRH_NEXT = IPV6_UDP, /* where an SRH stands, if there is one; the rest moves by its size */
    SRH_LENGTH = IPV6_UDP + 1,
    IPV4_PROTOCOL = OFFSET_IP + 9,
    IPV4_UDP = OFFSET_IP + 20,
    VLAN_ID = 0xFFF, /* of a tag; ID 0 is none, but priority */
    UDP_PORT = 2,
    UDP_CHECKSUM = 6,
    QP_PREFIX = 8 + 5, /* from the UDP header on: upper 8 bits of the destination QP */
};

/* ---- The filter ---- */

/* Lets through UDP to our port whose queue pair number has our prefix, or prefix 0 (endpoint
 * operations), in IPv4, IPv6, or IPv6 in IPv6, there also behind an SRH. Frames for other hosts are
 * seen where a port is promiscuous, those of a VLAN also by the interface below it: neither are
 * ours. X becomes the offset of the UDP header. */
static int attach_filter(int fd, uint16_t port, uint8_t prefix) {
    struct sock_filter code[] = {
        /*  0 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE)),
        /*  1 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OTHERHOST, 34, 0),
        /*  2 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_VLAN_TAG)),
        /*  3 */ BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, VLAN_ID, 32, 0),
        /*  4 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, OFFSET_ETHERTYPE),
        /*  5 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IPV6, 0, 20),
        /*  6 */ BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, IPV6_UDP),
        /*  7 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, IPV6_NEXT),
        /*  8 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 21, 0),
        /*  9 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_IPV6, 0, 3),
        /* 10 */ BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, INNER_UDP),
        /* 11 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, INNER_NEXT),
        /* 12 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 17, 23),
        /* 13 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_ROUTING, 0, 22),
        /* 14 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, SRH_NEXT),
        /* 15 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_IPV6, 0, 20),
        /* 16 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, SRH_LENGTH),
        /* 17 */ BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, 1),
        /* 18 */ BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 3),
        /* 19 */ BPF_STMT(BPF_MISC | BPF_TAX, 0),
        /* 20 */ BPF_STMT(BPF_LD | BPF_B | BPF_IND, INNER_NEXT),
        /* 21 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 14),
        /* 22 */ BPF_STMT(BPF_MISC | BPF_TXA, 0),
        /* 23 */ BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, INNER_UDP),
        /* 24 */ BPF_STMT(BPF_MISC | BPF_TAX, 0),
        /* 25 */ BPF_STMT(BPF_JMP | BPF_JA, 4),
        /* 26 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 9),
        /* 27 */ BPF_STMT(BPF_LDX | BPF_W | BPF_IMM, IPV4_UDP),
        /* 28 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, IPV4_PROTOCOL),
        /* 29 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 0, 6),
        /* 30 */ BPF_STMT(BPF_LD | BPF_H | BPF_IND, UDP_PORT),
        /* 31 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 4),
        /* 32 */ BPF_STMT(BPF_LD | BPF_B | BPF_IND, QP_PREFIX),
        /* 33 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, prefix, 1, 0),
        /* 34 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        /* 35 */ BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        /* 36 */ BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};

    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

static int attach_drop_all(int fd) {
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {.len = 1, .filter = code};

    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/* ---- Opening ---- */

static int set(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* The forced size needs CAP_NET_ADMIN; without it the kernel's limit applies. */
static void set_buffer(int fd, int forced, int plain, uint32_t size) {
    if (set(fd, SOL_SOCKET, forced, (int)size) != 0)
        set(fd, SOL_SOCKET, plain, (int)size);
}

static uint32_t buffer_of(int fd, int option) {
    int size = 0;
    socklen_t length = sizeof size;

    getsockopt(fd, SOL_SOCKET, option, &size, &length);
    return (uint32_t)size / 2; /* the kernel tells twice what may be used */
}

int plane_socket_open(struct plane_socket *plane, const struct plane_socket_config *config) {
    *plane = (struct plane_socket){.fd = -1, .quiet = -1, .has_gso = true};
    /* Protocol 0: nothing comes in before the filter is on and the interface is known. */
    plane->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (plane->fd < 0)
        return errno;
    if (attach_filter(plane->fd, config->udp_port, config->qp_prefix) != 0 ||
        set(plane->fd, SOL_PACKET, PACKET_VNET_HDR, 1) != 0 ||
        set(plane->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) != 0) {
        int error = errno;

        plane_socket_close(plane);
        return error;
    }
    set_buffer(plane->fd, SO_RCVBUFFORCE, SO_RCVBUF, config->receive_buffer);
    set_buffer(plane->fd, SO_SNDBUFFORCE, SO_SNDBUF, config->send_buffer);
    plane->receive_buffer = buffer_of(plane->fd, SO_RCVBUF);
    plane->send_buffer = buffer_of(plane->fd, SO_SNDBUF);
    return 0;
}

void plane_socket_close(struct plane_socket *plane) {
    if (plane->fd >= 0)
        close(plane->fd);
    if (plane->quiet >= 0)
        close(plane->quiet);
    plane->fd = -1;
    plane->quiet = -1;
    plane->index = 0;
}

int plane_socket_bind(struct plane_socket *plane, int index) {
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};

    if (bind(plane->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return errno;
    plane->index = index;
    plane->has_gso = true; /* it may be another device */
    return 0;
}

/* Or the kernel would cut every frame of several packets before it drops them. */
static int set_gro(int fd) { return set(fd, IPPROTO_UDP, UDP_GRO, 1); }

int plane_socket_silence(struct plane_socket *plane, const mrc_address *address,
                         uint16_t udp_port) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons(udp_port),
                               .sin6_scope_id = (uint32_t)plane->index};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(udp_port)};
    bool is_six = address->version == 6;
    int before = plane->quiet; /* closed last: the kernel answers when there is none */
    int error = 0;

    plane->quiet = -1;
    memcpy(&six.sin6_addr, address->bytes, 16);
    memcpy(&four.sin_addr, address->bytes, 4);
    if (address->version != 0) {
        plane->quiet = socket(is_six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (plane->quiet < 0 || set(plane->quiet, SOL_SOCKET, SO_REUSEPORT, 1) != 0 ||
            set_gro(plane->quiet) != 0 || attach_drop_all(plane->quiet) != 0 ||
            bind(plane->quiet, is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four,
                 is_six ? sizeof six : sizeof four) != 0)
            error = errno;
    }
    if (error != 0 && plane->quiet >= 0) {
        close(plane->quiet);
        plane->quiet = -1;
    }
    if (before >= 0)
        close(before);
    return error;
}

/* ---- Receiving ---- */

uint32_t plane_socket_receive(struct plane_socket *plane, uint8_t *buffers,
                              mrc_frame_in frames[PLANE_BATCH]) {
    struct virtio_net_hdr headers[PLANE_BATCH];
    struct iovec parts[PLANE_BATCH][2];
    struct mmsghdr messages[PLANE_BATCH];
    uint32_t count = 0;
    int received;

    for (uint32_t i = 0; i < PLANE_BATCH; i++) {
        parts[i][0] = (struct iovec){&headers[i], sizeof headers[i]};
        parts[i][1] = (struct iovec){buffers + (size_t)i * PLANE_FRAME_MAX, PLANE_FRAME_MAX};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = parts[i], .msg_iovlen = 2};
    }
    received = recvmmsg(plane->fd, messages, PLANE_BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < received; i++) {
        bool is_cut = messages[i].msg_hdr.msg_flags & MSG_TRUNC;

        if (messages[i].msg_len <= sizeof headers[i] || is_cut)
            continue; /* longer than any frame can be: it is not ours */
        frames[count++] = (mrc_frame_in){
            .data = parts[i][1].iov_base,
            .size = messages[i].msg_len - (uint32_t)sizeof headers[i],
            .segment_size = headers[i].gso_type == VIRTIO_NET_HDR_GSO_NONE ? 0
                                                                           : headers[i].gso_size,
        };
    }
    return count;
}

/* ---- Sending ---- */

static void put_header(const mrc_frame_out *frame, struct virtio_net_hdr *header) {
    memset(header, 0, sizeof *header);
    if (frame->packets == 1)
        return;
    header->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    header->gso_type = VIRTIO_NET_HDR_GSO_UDP_L4;
    header->hdr_len = (uint16_t)frame->header_size;
    header->gso_size = (uint16_t)frame->segment_size;
    header->csum_start = (uint16_t)(frame->header_size - 8);
    header->csum_offset = UDP_CHECKSUM;
}

static void count_error(struct plane_socket *plane, int error) {
    plane->send_errors++;
    plane->send_errno = error;
}

static uint32_t ones_sum(const uint8_t *data, uint32_t size) {
    uint32_t sum = 0;

    for (uint32_t i = 0; i + 1 < size; i += 2)
        sum += get_be16(data + i);
    while (sum >> 16)
        sum = (sum & 0xFFFF) + (sum >> 16);
    return sum;
}

/* Headers of packet `index` as the kernel would have written it (MRC 1.0, ICRC). */
static void cut_headers(const mrc_frame_out *frame, uint32_t index, uint32_t transport,
                        uint8_t *headers) {
    uint8_t *ip = headers + OFFSET_IP;
    uint8_t *udp = headers + frame->header_size - 8;

    memcpy(headers, frame->scratch, frame->header_size);
    put_be16(udp + 4, (uint16_t)(transport + 8));
    put_be16(udp + UDP_CHECKSUM, 0);
    if (frame->ip_version == 6) {
        put_be16(ip + 4, (uint16_t)(transport + 8));
        return;
    }
    put_be16(ip + 2, (uint16_t)(transport + 8 + 20));
    put_be16(ip + 4, (uint16_t)(get_be16(ip + 4) + index));
    put_be16(ip + 10, 0);
    put_be16(ip + 10, (uint16_t)~ones_sum(ip, 20));
}

/* Copies `size` bytes from `offset` on out of the frame's slices. */
static void gather(const mrc_frame_out *frame, uint32_t offset, uint32_t size, uint8_t *out) {
    for (uint32_t i = 0; i < frame->slice_count && size > 0; i++) {
        const mrc_slice *slice = &frame->slices[i];
        uint32_t here;

        if (offset >= slice->size) {
            offset -= (uint32_t)slice->size;
            continue;
        }
        here = (uint32_t)slice->size - offset < size ? (uint32_t)slice->size - offset : size;
        memcpy(out, slice->base + offset, here);
        out += here;
        size -= here;
        offset = 0;
    }
}

/* For a device that refuses frames of several packets: one system call for each packet. True when
 * any of them left. */
static bool send_singly(struct plane_socket *plane, const mrc_frame_out *frame) {
    uint8_t packet[16384];
    struct virtio_net_hdr header = {0};
    struct iovec parts[2] = {{&header, sizeof header}, {packet, 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    uint32_t left = frame->size - frame->header_size;
    bool has_sent = false;

    for (uint32_t i = 0; left > 0; i++) {
        uint32_t size = left < frame->segment_size ? left : frame->segment_size;

        if (frame->header_size + size > sizeof packet)
            break;
        cut_headers(frame, i, size, packet);
        gather(frame, frame->size - left, size, packet + frame->header_size);
        parts[1].iov_len = frame->header_size + size;
        if (sendmsg(plane->fd, &message, MSG_DONTWAIT) < 0)
            count_error(plane, errno);
        else
            has_sent = true;
        left -= size;
    }
    return has_sent;
}

/* What became of a frame that the kernel refused. True: go on with the next one. */
static bool on_refusal(struct plane_socket *plane, const mrc_frame_out *frame, int error) {
    count_error(plane, error);
    if (error == EAGAIN || error == ENOBUFS)
        return false;
    if (frame->packets > 1 && (error == EINVAL || error == EIO || error == ENOMEM ||
                               error == EMSGSIZE || error == EOPNOTSUPP)) {
        /* Where its packets do not leave singly either, it was not their number. */
        plane->has_gso = !send_singly(plane, frame);
    }
    return true;
}

uint32_t plane_socket_send(struct plane_socket *plane, mrc_frame_out *const *frames,
                           uint32_t count) {
    struct virtio_net_hdr headers[PLANE_BATCH];
    struct iovec parts[PLANE_BATCH][MRC_FRAME_SLICES + 1];
    struct mmsghdr messages[PLANE_BATCH];
    uint32_t done = 0;

    for (uint32_t i = 0; i < count; i++) {
        const mrc_frame_out *frame = frames[i];

        put_header(frame, &headers[i]);
        parts[i][0] = (struct iovec){&headers[i], sizeof headers[i]};
        for (uint32_t k = 0; k < frame->slice_count; k++)
            parts[i][k + 1] = (struct iovec){(void *)(uintptr_t)frame->slices[k].base,
                                             frame->slices[k].size};
        messages[i].msg_hdr =
            (struct msghdr){.msg_iov = parts[i], .msg_iovlen = frame->slice_count + 1};
    }
    while (done < count) {
        int sent;

        if (!plane->has_gso && frames[done]->packets > 1) {
            send_singly(plane, frames[done++]);
            continue;
        }
        sent = sendmmsg(plane->fd, messages + done, count - done, MSG_DONTWAIT);
        if (sent > 0)
            done += (uint32_t)sent;
        else if (errno != EINTR && !on_refusal(plane, frames[done], errno))
            break;
        else if (errno != EINTR)
            done++;
    }
    return done;
}

void plane_socket_count_drops(struct plane_socket *plane) {
    struct tpacket_stats stats = {0};
    socklen_t length = sizeof stats;

    if (plane->fd >= 0 &&
        getsockopt(plane->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
        plane->kernel_drops += stats.tp_drops;
}
