/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel knows of our interfaces and next hops, followed by a netlink socket of our own.
 *
 * Keeps two tables up to date: planes (an interface by name: index, state, MTU, addresses) and hops
 * (a next hop's link address). Whoever reads them compares with what it last saw.
 * Source: rtnetlink(7).
 */
#ifndef NETLINK_WATCH_H
#define NETLINK_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"

enum { WATCH_ADDRESSES = 16, WATCH_NAME = 16 };

struct watched_plane {
    bool is_used;
    char name[WATCH_NAME];
    mrc_address wanted; /* preferred; version 0: none */
    mrc_address kept;   /* the one that it had, and has again when that comes back */
    int index;          /* 0: the interface does not exist */
    bool is_seen;       /* in the dump that is being read */
    mrc_plane info;     /* address: the one chosen; enabled is not ours */
    uint32_t address_count;
    mrc_address addresses[WATCH_ADDRESSES];
};

/* A link address stays known when the kernel's entry fails or goes: only another one, or another
 * interface or link address of our own, ends that. */
struct watched_hop {
    bool is_used;
    uint32_t plane;
    mrc_address next_hop;
    bool has_mac;
    uint8_t mac[6];
};

struct netlink_watch {
    int fd;
    int nudge4; /* UDP sockets */
    int nudge6;
    uint32_t sequence;
    uint16_t udp_port;
    bool is_syncing;
    bool is_overrun; /* messages were lost: everything must be read again */
    struct watched_plane planes[MRC_PLANES];
    struct watched_hop *hops;
    uint32_t hop_count;
};

/* `hops` is room for hop_count entries. Returns 0 or the errno. */
int netlink_watch_open(struct netlink_watch *watch, uint16_t udp_port, struct watched_hop *hops,
                       uint32_t hop_count);
void netlink_watch_close(struct netlink_watch *watch);

/* Reads links, addresses and neighbours anew. Blocks for the kernel's answer, well below 1 ms. */
void netlink_watch_sync(struct netlink_watch *watch);

/* Takes in what has come; false when nothing had. */
bool netlink_watch_read(struct netlink_watch *watch);

/* Makes the kernel resolve a next hop by sending it an empty datagram. */
void netlink_watch_nudge(struct netlink_watch *watch, struct watched_hop *hop);

#endif
